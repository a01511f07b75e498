#include "convert/formats/dcp.h"

#include <algorithm>
#include <set>

#include "convert/formats/dcp_index.h"

namespace cairn {
namespace {

// What a tensor is to a model.
struct Place {
  std::string parameter;
  Role role = Role::kWeight;
  bool step = false;  // the number of updates of a parameter's moments
};

constexpr std::string_view kWrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                          "_checkpoint_wrapped_module."};

std::string WithoutWrappers(std::string name) {
  for (const std::string_view wrapper : kWrappers)
    for (size_t at; (at = name.find(wrapper)) != std::string::npos;) name.erase(at, wrapper.size());
  return name;
}

// "...state.PARAMETER.exp_avg", whose parts are a path of the planner's or one text of it. A model may have a
// module called "state", so the last one before a known ending counts.
std::optional<Place> OptimizerPlace(const std::string& name) {
  constexpr std::string_view kState = "state.";
  const size_t end = name.rfind('.');
  if (end == std::string::npos) return std::nullopt;
  const std::string_view kind = std::string_view(name).substr(end + 1);
  size_t begin = name.starts_with(kState) ? 0 : name.find(".state.");
  if (begin == std::string::npos) return std::nullopt;
  begin += begin == 0 && name.starts_with(kState) ? kState.size() : kState.size() + 1;
  if (begin >= end) return std::nullopt;
  Place place{WithoutWrappers(name.substr(begin, end - begin))};
  if (kind == "exp_avg")
    place.role = Role::kExpAvg;
  else if (kind == "exp_avg_sq")
    place.role = Role::kExpAvgSq;
  else if (kind == "step")
    place.step = true;
  else
    return std::nullopt;
  return place;
}

// Weights go by the last part of their path, which is the key of the model's state dict, unless two models
// are in the checkpoint that share names.
std::vector<Place> PlaceAll(const DcpIndex& index) {
  std::vector<Place> places;
  std::set<std::string> names;
  bool unique = true;
  for (const DcpTensor& tensor : index.tensors) {
    auto place = OptimizerPlace(tensor.name);
    if (!place) {
      place = Place{WithoutWrappers(tensor.path.empty() ? tensor.name : tensor.path.back())};
      unique = names.insert(place->parameter).second && unique;
    }
    places.push_back(*std::move(place));
  }
  for (size_t i = 0; !unique && i < places.size(); ++i)
    if (places[i].role == Role::kWeight && !places[i].step)
      places[i].parameter = WithoutWrappers(index.tensors[i].name);
  return places;
}

class Reader {
 public:
  Reader(FileSystem& fs, std::string path, const OpenOptions& options, const DcpIndex& index)
      : fs_(fs), path_(std::move(path)), options_(options), index_(index), items_(fs, path_) {}

  Result<std::unique_ptr<CheckpointSource>> Open() {
    const std::vector<Place> places = PlaceAll(index_);
    for (size_t i = 0; i < places.size(); ++i) CAIRN_RETURN_IF_ERROR(Add(index_.tensors[i], places[i]));
    if (steps_.size() == 1) manifest_.state["optimizer_step"] = *steps_.begin();
    CAIRN_RETURN_IF_ERROR(ReadState());
    return builder_.Open(fs_, path_, std::move(manifest_));
  }

 private:
  Status Add(const DcpTensor& tensor, const Place& place) {
    if (IsAllowed(options_, tensor.name)) {
      manifest_.history.push_back("left out " + tensor.name);
      return OkStatus();
    }
    if (place.step && tensor.shape.rank() == 0 && tensor.chunks.size() == 1) {
      CAIRN_ASSIGN_OR_RETURN(const double step, items_.Number(tensor.name, tensor.chunks[0].item));
      steps_.insert(step);
      return OkStatus();
    }
    for (const DcpChunk& chunk : tensor.chunks) {
      const uint32_t file = builder_.AddFile(chunk.item.file);
      CAIRN_ASSIGN_OR_RETURN(const TensorArray array, items_.Array(tensor, chunk, file));
      CAIRN_ASSIGN_OR_RETURN(
          const uint32_t entry,
          builder_.Tensor({.name = place.step ? tensor.name : place.parameter, .shape = tensor.shape},
                          place.role, array.array.dtype));
      builder_.AddPart(entry, chunk.box, array);
    }
    return OkStatus();
  }

  // Numbers that say how far a training was.
  Status ReadState() {
    static const std::set<std::string, std::less<>> kKnown = {
        "iteration", "step", "global_step", "epoch", "consumed_samples", "consumed_tokens", "lr"};
    for (const DcpBytes& bytes : index_.bytes) {
      const std::string key = bytes.path.empty() ? bytes.name : bytes.path.back();
      if (!kKnown.contains(key) || OptimizerPlace(bytes.name)) continue;
      const auto number = items_.Number(bytes.name, bytes.item);
      if (!number.ok() && number.status().kind() != StatusKind::kNotSupported) return number.status();
      if (number.ok()) AddState(key, *number);
    }
    for (const char* key : {"iteration", "global_step", "step"})
      if (manifest_.step == 0) manifest_.step = IntField(manifest_.state, key);
    return OkStatus();
  }
  void AddState(const std::string& key, double number) {
    if (key != "lr" && number >= 0 && number < 9e15)
      manifest_.state[key] = static_cast<int64_t>(number);
    else
      manifest_.state[key] = number;
  }

  FileSystem& fs_;
  const std::string path_;
  const OpenOptions& options_;
  const DcpIndex& index_;
  DcpItems items_;
  StoredBuilder builder_;
  Manifest manifest_;
  std::set<double> steps_;
};

}  // namespace

bool MatchesDcp(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok() || !info->is_directory) return false;
  if (fs.Stat(JoinPath(path, ".metadata")).ok()) return true;
  const auto names = fs.List(path);
  return names.ok() &&
         std::ranges::any_of(*names, [](const std::string& n) { return n.ends_with(".distcp"); });
}

Result<std::unique_ptr<CheckpointSource>> OpenDcp(FileSystem& fs, const std::string& path,
                                                  const OpenOptions& options) {
  if (!fs.Stat(JoinPath(path, ".metadata")).ok())
    return NotFound(
        "{}: there are .distcp files and no .metadata: its save was interrupted, and nothing else "
        "says which tensor is where; take an older checkpoint",
        path);
  CAIRN_ASSIGN_OR_RETURN(const DcpIndex index, ReadDcpIndex(fs, path));
  return Reader(fs, path, options, index).Open();
}

}  // namespace cairn
