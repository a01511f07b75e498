#include "convert/formats/dcp.h"

#include <algorithm>
#include <set>

#include "convert/formats/dcp_index.h"
#include "convert/formats/dcp_param_groups.h"
#include "convert/formats/safetensors.h"
#include "convert/strict_json.h"

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
  else if (kind == "master_param")
    place.role = Role::kMaster;
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
    CAIRN_RETURN_IF_ERROR(ReadOwn());
    const std::vector<Place> places = PlaceAll(index_);
    for (size_t i = 0; i < places.size(); ++i) CAIRN_RETURN_IF_ERROR(Add(index_.tensors[i], places[i]));
    CAIRN_RETURN_IF_ERROR(AddSteps());
    CAIRN_RETURN_IF_ERROR(ReadState());
    groups_.PutInto(manifest_.state);
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
      steps_.push_back({&tensor, place.parameter, step});
      return OkStatus();
    }
    for (const DcpChunk& chunk : tensor.chunks) {
      const uint32_t file = builder_.AddFile(chunk.item.file);
      CAIRN_ASSIGN_OR_RETURN(const TensorArray array, items_.Array(tensor, chunk, file));
      CAIRN_ASSIGN_OR_RETURN(const uint32_t entry,
                             builder_.Tensor(SpecOf(tensor, place), place.role, array.array.dtype));
      builder_.AddPart(entry, chunk.box, array);
    }
    return OkStatus();
  }

  // One number where all parameters agree, else a tensor for each.
  Status AddSteps() {
    const auto differ = [](const Step& a, const Step& b) { return a.number != b.number; };
    if (steps_.empty()) return OkStatus();
    if (std::ranges::adjacent_find(steps_, differ) == steps_.end()) {
      manifest_.state["optimizer_step"] = steps_[0].number;
      return OkStatus();
    }
    manifest_.state.erase("optimizer_step");
    for (const Step& step : steps_) {
      const DcpChunk& chunk = step.tensor->chunks[0];
      CAIRN_ASSIGN_OR_RETURN(const TensorArray array,
                             items_.Array(*step.tensor, chunk, builder_.AddFile(chunk.item.file)));
      ParameterSpec spec{.name = step.parameter, .shape = {}};
      if (const auto known = specs_.find(spec.name); known != specs_.end()) spec.layer = known->second.layer;
      CAIRN_ASSIGN_OR_RETURN(const uint32_t entry, builder_.Tensor(spec, Role::kStep, array.array.dtype));
      builder_.AddPart(entry, chunk.box, array);
    }
    return OkStatus();
  }

  ParameterSpec SpecOf(const DcpTensor& tensor, const Place& place) const {
    ParameterSpec spec{.name = place.step ? tensor.name : place.parameter, .shape = tensor.shape};
    if (const auto known = specs_.find(spec.name); known != specs_.end()) spec = known->second;
    spec.shape = tensor.shape;
    return spec;
  }

  // What our own writer adds: the model, how its parameters are cut, and the training's state.
  Status ReadOwn() {
    for (const DcpBytes& bytes : index_.bytes) {
      if (bytes.name != "cairn") continue;
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, items_.Open(bytes.name, bytes.item));
      const auto text = AsText(&file.root());
      if (!text) return OkStatus();  // somebody else's
      const Status status = TakeOwn(*text);
      if (!status.ok()) return status.WithContext(path_ + ": its item \"cairn\"");
    }
    return OkStatus();
  }
  Status TakeOwn(std::string_view text) {
    CAIRN_ASSIGN_OR_RETURN(const nlohmann::json own, ParseStrictJson(text));
    if (!own.is_object()) return Corrupt("it is no object");
    const auto part = [&](const char* key, nlohmann::json fallback) {
      return own.contains(key) && own[key].type() == fallback.type() ? own[key] : fallback;
    };
    manifest_.model = part("model", nlohmann::json::object());
    manifest_.state = part("state", nlohmann::json::object());
    manifest_.history = part("history", nlohmann::json::array());
    manifest_.step = IntField(own, "step");
    std::map<std::string, Dims, std::less<>> shapes;
    for (const DcpTensor& tensor : index_.tensors)
      if (!tensor.path.empty()) shapes.emplace(tensor.path.back(), tensor.shape);
    const nlohmann::json rows = part("parameters", "");
    CAIRN_ASSIGN_OR_RETURN(const std::vector<ParameterSpec> specs,
                           DecodeParameters(rows.get_ref<const std::string&>(), shapes));
    for (const ParameterSpec& spec : specs) specs_.emplace(spec.name, spec);
    return OkStatus();
  }

  // Numbers that say how far a training was.
  Status ReadState() {
    static const std::set<std::string, std::less<>> kKnown = {
        "iteration", "step", "global_step", "epoch", "consumed_samples", "consumed_tokens", "lr"};
    for (const DcpBytes& bytes : index_.bytes) {
      CAIRN_RETURN_IF_ERROR(ReadHyperParameter(bytes));
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
  Status ReadHyperParameter(const DcpBytes& bytes) {
    if (!DcpParamGroups::IsOne(bytes)) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, items_.Open(bytes.name, bytes.item));
    groups_.Add(bytes, file.root(), WithoutWrappers);
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
  struct Step {  // updates of a parameter's moments
    const DcpTensor* tensor;
    std::string parameter;
    double number;
  };
  std::vector<Step> steps_;
  DcpParamGroups groups_;
  std::map<std::string, ParameterSpec, std::less<>> specs_;  // where our own writer says them
};

}  // namespace

bool MatchesDcp(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok() || !info->is_directory()) return false;
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
