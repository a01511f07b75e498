// Our own item "cairn" is read first, since it says how parameters are cut. Then all tensors get their
// places at once (dcp_places.h). The steps are read before the tensors, since one number that all
// parameters share is state, not a tensor. Tensors, items and hyper-parameters follow. In the end every item
// that was not opened is listed too, so that its bytes need a fate.

#include "convert/formats/dcp/dcp.h"

#include <algorithm>
#include <set>

#include "ckpt/io/strict_json.h"
#include "convert/foreign/dict_entries.h"
#include "convert/formats/dcp/dcp_pair.h"
#include "convert/formats/dcp/dcp_slices.h"
#include "convert/formats/hugging_face/safetensors.h"
#include "convert/formats/training/dcp_param_groups.h"
#include "convert/formats/training/dcp_places.h"
#include "convert/formats/training/param_groups.h"
#include "convert/formats/training/state_places.h"

namespace cairn {
namespace {

std::vector<DcpName> NamesOf(const DcpIndex& index) {
  std::vector<DcpName> names;
  for (const DcpTensor& tensor : index.tensors)
    names.push_back({tensor.name, tensor.path, tensor.shape.rank()});
  return names;
}

DcpOptimizers OptimizersOf(const DcpIndex& index) {
  std::vector<DcpName> names = NamesOf(index);
  for (const DcpBytes& bytes : index.bytes) names.push_back({bytes.name});
  return DcpOptimizersOf(names);
}

Result<DcpIndex> ReadAny(FileSystem& fs, const std::string& path, ReaderOptions& options) {
  const auto names = fs.List(path);
  if (names.ok() && !HoldsDcp(fs, path) && HoldsDcpSlices(*names)) return ReadDcpSlices(fs, path, options);
  return ReadDcp(fs, path);
}

class DcpReader {
 public:
  DcpReader(FileSystem& fs, std::string path, ReaderOptions& options, DcpIndex& index)
      : fs_(fs),
        path_(std::move(path)),
        options_(options),
        index_(index),
        optimizers_(OptimizersOf(index)),
        items_(fs, path_, builder_.account) {
    builder_.account = std::move(index.account);
  }

  Result<std::unique_ptr<ForeignSource>> Open() {
    items_.ReadAhead(index_);
    CAIRN_RETURN_IF_ERROR(ReadOwn());
    const std::vector<DcpName> names = NamesOf(index_);
    std::vector<DcpPlace> places = PlaceDcpTensors(names, optimizers_);
    TakeOwnNames(places);
    // Our own writer's other names may look like states, too; those of an optimizer have its groups.
    const auto may_be_state = [&](size_t i) {
      return places[i].role != Role::kWeight && !IsAllowed(options_, names[i].name) &&
             (!IsOwnOther(names[i].name) || IsOfDcpOptimizers(names[i].name, optimizers_.starts));
    };
    std::vector<DcpName> states;
    for (size_t i = 0; i < places.size(); ++i)
      if (may_be_state(i)) states.push_back(names[i]);
    const auto unread = UnreadDcpOptimizers(states, places, optimizers_);
    for (const auto& [optimizer, state] : unread) unread_.insert(optimizer);
    const bool part = HasUnreadState(places, [&](size_t i) { return index_.tensors[i].shape; });
    leave_optimizer_ = (!unread_.empty() || part) && IsAllowed(options_, "optimizer");
    const bool kept = options_.keep_unread && options_.config.empty();  // under its own names
    if (!unread_.empty() && !leave_optimizer_ && !kept)
      return NotSupported("{}: its {}state has numbers or unknown names ({}), which only DCP keeps; {}",
                          path_, unread.begin()->first, unread.begin()->second,
                          "--allow optimizer takes the weights without it");
    if (leave_optimizer_) {
      manifest_.history.push_back("the optimizer's state was left out (--allow optimizer)");
      unread_.clear();
    }
    for (size_t i = 0; i < places.size(); ++i)
      if (const std::string& name = index_.tensors[i].name; IsUnread(name)) places[i] = {name, {}, true};
    CAIRN_RETURN_IF_ERROR(ReadSteps(places));
    for (size_t i = 0; i < places.size(); ++i) CAIRN_RETURN_IF_ERROR(Add(index_.tensors[i], places[i]));
    CAIRN_RETURN_IF_ERROR(ReadState());
    bool apart = false;
    for (size_t i = 0; i < places.size(); ++i)
      apart |= IsToldApart(index_.tensors[i].name, places[i].parameter, optimizers_);
    groups_.PutInto(manifest_.state, apart);
    NoteForm(places);
    manifest_.state.erase(kDcpOthers);
    if (!others_.empty()) manifest_.state[kDcpOthers] = index_.PathsOf(others_);
    CAIRN_RETURN_IF_ERROR(items_.ListAll(index_));
    return builder_.Open(fs_, path_, std::move(manifest_), options_.replicas);
  }

 private:
  // Whether a tensor or an item is of an optimizer that is kept as it is.
  bool IsUnread(const std::string& name) const { return IsOfDcpOptimizers(name, unread_); }
  static bool IsNumber(const DcpTensor& tensor) {
    return tensor.shape.Volume() == 1 && tensor.chunks.size() == 1 && !tensor.chunks[0].array;
  }

  // Our own writer says which names are parameters, and which are the training's, whatever they look like.
  void TakeOwnNames(std::vector<DcpPlace>& places) const {
    for (size_t i = 0; i < places.size(); ++i) {
      const auto& path = index_.tensors[i].path;
      if (IsOwnOther(index_.tensors[i].name))
        places[i] = {index_.tensors[i].name, std::nullopt, true};
      else if (!path.empty() && specs_.contains(path.back()) &&
               path == DcpFormOf(manifest_.state).Weight(path.back()))
        places[i] = {path.back()};
    }
  }
  bool IsOwnOther(const std::string& name) const { return own_others_.contains(name); }

  // The one form that gives all tensors the paths that they have, if there is one.
  void NoteForm(const std::vector<DcpPlace>& places) {
    DcpForm form{.flat = groups_.flat()};
    bool fits = true, weights = false, states = false;
    const auto take = [&](const std::vector<std::string>& path, size_t own, bool& known,
                          DcpForm::Keys& keys) {
      if (!known) keys.assign(path.begin(), path.end() - std::min(own, path.size()));
      known = true;
    };
    for (size_t i = 0; i < places.size(); ++i) {
      const auto& path = index_.tensors[i].path;
      if (places[i].role == Role::kWeight) {
        take(path, 1, weights, form.weights);
        fits &= path == form.Weight(places[i].parameter);
      } else if (places[i].role && places[i].optimizer) {
        const std::string_view key = kDcpPlaces.NameOf(*places[i].role);
        const auto dots = static_cast<size_t>(std::ranges::count(key, '.'));
        const bool dotted = dots > 0 && !form.flat && !path.empty() && path.back() == key;
        if (dotted && std::ranges::find(form.dotted, key) == form.dotted.end()) form.dotted.emplace_back(key);
        take(path, form.flat ? 1 : 3 + (dotted ? 0 : dots), states, form.optimizer);
        fits &= path == form.State(places[i].parameter, key);
      }
    }
    manifest_.state.erase(kDcpForm);
    if (fits && form != DcpForm()) manifest_.state[kDcpForm] = ToJson(form);
  }

  // One number if all parameters agree, else a tensor for each.
  Status ReadSteps(const std::vector<DcpPlace>& places) {
    std::set<double> steps;
    for (size_t i = 0; i < places.size(); ++i) {
      const DcpTensor& tensor = index_.tensors[i];
      if (places[i].role != Role::kStep || !IsNumber(tensor) || IsAllowed(options_, tensor.name)) continue;
      CAIRN_ASSIGN_OR_RETURN(const auto step, items_.Number(tensor.name, tensor.chunks[0].item));
      if (!step) return NotSupported("{}: {} is not a number", path_, tensor.name);
      steps.insert(*step);
    }
    one_step_ = steps.size() == 1;
    if (one_step_) manifest_.state["optimizer_step"] = *steps.begin();
    if (steps.size() > 1) manifest_.state.erase("optimizer_step");
    return OkStatus();
  }

  // Numbers are known under their names, too. A hyper-parameter may be a tensor.
  Status AddTrainingState(const DcpTensor& tensor) {
    std::optional<double> number;
    if (IsNumber(tensor)) {
      CAIRN_ASSIGN_OR_RETURN(number, items_.Number(tensor.name, tensor.chunks[0].item));
    }
    const bool unread = IsUnread(tensor.name);
    const bool hyper = !unread && DcpParamGroups::IsOne(tensor.name, tensor.path);
    if (number && hyper)
      groups_.Add(tensor.name, tensor.path, *number);
    else if (number && !unread)
      TakeNumber(tensor.name, tensor.path, *number);
    if (hyper || !tensor.dtype) {
      if (!number) builder_.account.OmitValue(tensor.name);
      return items_.Omit(Fate::kTrainingState, tensor);
    }
    others_.insert(tensor.name);
    return AddArrays(tensor, {.name = tensor.name, .shape = tensor.shape}, Role::kTraining);
  }

  Status Add(const DcpTensor& tensor, const DcpPlace& place) {
    if (leave_optimizer_ && !place.training && place.role != Role::kWeight)
      return items_.Omit(Fate::kAllowed, tensor);
    if (IsAllowed(options_, tensor.name)) {
      manifest_.history.push_back("left out " + tensor.name);
      return items_.Omit(Fate::kAllowed, tensor);
    }
    if (place.training) return AddTrainingState(tensor);
    if (place.role == Role::kStep && one_step_ && IsNumber(tensor))
      return items_.Omit(Fate::kTrainingState, tensor);
    return AddArrays(tensor, SpecOf(tensor, place), *place.role);
  }

  Status AddArrays(const DcpTensor& tensor, const ParameterSpec& spec, const Role& role) {
    if (tensor.chunks.empty()) {
      if (!tensor.dtype) return NotSupported("{}: {} is empty and has an unknown type", path_, tensor.name);
      const Box box = Box::Whole(tensor.shape);
      CAIRN_ASSIGN_OR_RETURN(const uint32_t entry, builder_.Tensor(spec, role, *tensor.dtype));
      builder_.AddPart(entry, box, {tensor.name, *tensor.dtype, tensor.shape});
    }
    for (const DcpChunk& chunk : tensor.chunks) {
      const Result<StoredArray> array = items_.Array(tensor, chunk, builder_.AddFile(chunk.item.file));
      if (array.status().kind() == StatusKind::kNotSupported)
        return NotSupported("{}; --allow '{}' leaves it out", array.status().message(), tensor.name);
      if (!array.ok()) return array.status();
      CAIRN_ASSIGN_OR_RETURN(const uint32_t entry, builder_.Tensor(spec, role, array->dtype));
      builder_.AddPart(entry, chunk.box, *array);
      const auto read = static_cast<uint32_t>(builder_.catalog.arrays.size() - 1);
      for (const auto& [file, copy] : chunk.replicas)
        builder_.AddReplica(entry, builder_.AddArray(DcpItems::InFile(copy, builder_.AddFile(file))), read);
    }
    return OkStatus();
  }

  ParameterSpec SpecOf(const DcpTensor& tensor, const DcpPlace& place) const {
    ParameterSpec spec{.name = place.parameter, .shape = tensor.shape};
    const auto known = specs_.find(spec.name);
    if (known == specs_.end()) return spec;
    // Numbers and rows that are states of a whole parameter are cut nowhere.
    if (known->second.shape == tensor.shape)
      spec = known->second;
    else
      spec.layer = known->second.layer;
    return spec;
  }

  // The item that our own writer adds: the model, how its parameters are cut, and the training's state.
  Status ReadOwn() {
    for (const DcpBytes& bytes : index_.bytes) {
      if (bytes.name != "cairn") continue;
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, items_.Peek(bytes.name, bytes.item));
      const auto text = AsText(&file.root());
      if (!text) return OkStatus();  // another program's
      const Status status = TakeOwn(*text);
      if (!status.ok()) return status.WithContext(path_ + ": its item \"cairn\"");
    }
    return OkStatus();
  }
  Status TakeOwn(std::string_view text) {
    CAIRN_ASSIGN_OR_RETURN(const nlohmann::json own, ParseStrictJson(text));
    if (!own.is_object()) return Corrupt("it is not an object");
    const auto part = [&](const char* key, nlohmann::json fallback) {
      return own.contains(key) && own[key].type() == fallback.type() ? own[key] : fallback;
    };
    manifest_.model = part("model", nlohmann::json::object());
    manifest_.state = part("state", nlohmann::json::object());
    is_own_ = true;
    own_others_ = manifest_.state.value(kDcpOthers, nlohmann::json::object());
    CAIRN_RETURN_IF_ERROR(CheckOwnState(manifest_.state));
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

  // The fields that are read and changed here must have the type that our writer gives them.
  static Status CheckOwnState(const nlohmann::json& state) {
    const auto step = state.find("optimizer_step"), other = state.find("other");
    if (step != state.end() && !step->is_number())
      return Corrupt("its state.optimizer_step is {}, not a number", step->type_name());
    if (other != state.end() && !other->is_object())
      return Corrupt("its state.other is {}, not an object", other->type_name());
    return OkStatus();
  }

  // Values that are not tensors: progress of the training, hyper-parameters, and others, which are carried
  // unchanged.
  Status ReadState() {
    for (const DcpBytes& bytes : index_.bytes) {
      const Result<TorchFile> file = items_.Peek(bytes.name, bytes.item);
      if (file.status().kind() == StatusKind::kNotSupported && IsOther(bytes)) {
        CAIRN_RETURN_IF_ERROR(AddOther(bytes));
        continue;
      }
      if (!file.ok()) return file.status();
      if (bytes.name == "cairn" && is_own_)
        items_.List(*file, bytes.item);
      else
        CAIRN_RETURN_IF_ERROR(ReadItem(bytes, *file));
    }
    for (const char* key : {"iteration", "global_step", "step"})
      if (manifest_.step == 0) manifest_.step = IntField(manifest_.state, key);
    return OkStatus();
  }
  Status ReadItem(const DcpBytes& bytes, const TorchFile& file) {
    const auto plain = PlainJson(file.root());
    if (IsOther(bytes)) {
      if (plain && plain->is_number() && IsProgress(bytes.name, bytes.path) && !IsUnread(bytes.name))
        TakeNumber(bytes.name, bytes.path, plain->get<double>());
      if (!is_own_ || IsOwnOther(bytes.name)) return AddOther(bytes);
    }
    items_.List(file, bytes.item);
    if (DcpParamGroups::IsOne(bytes.name, bytes.path))
      groups_.Add(bytes.name, bytes.path, HyperParameter(file.root()));
    else if (const auto place = DcpStatePlace(bytes.name, optimizers_))
      return ReadPlainState(bytes, *place, plain);
    builder_.account.OmitBelow(Fate::kTrainingState, file, file.root(), bytes.name);
    return OkStatus();
  }
  // Neither a hyper-parameter nor a state of an optimizer that is read.
  bool IsOther(const DcpBytes& bytes) const {
    if (IsUnread(bytes.name)) return true;
    return !DcpParamGroups::IsOne(bytes.name, bytes.path) && !DcpStatePlace(bytes.name, optimizers_);
  }
  Status AddOther(const DcpBytes& bytes) {
    if (IsAllowed(options_, bytes.name)) return items_.Omit(Fate::kAllowed, bytes.name, bytes.item);
    if (bytes.item.value) {  // a value among others, not a file of its own
      builder_.account.OmitValue(bytes.name);
      return items_.Omit(Fate::kTrainingState, bytes.name, bytes.item);
    }
    others_.insert(bytes.name);
    const StoredArray array = items_.Whole(bytes.name, bytes.item, builder_.AddFile(bytes.item.file));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t entry, builder_.Tensor({.name = bytes.name, .shape = array.shape},
                                                                 Role::kPickle, Dtype::kU8));
    builder_.AddPart(entry, Box::Whole(array.shape), array);
    return OkStatus();
  }
  // Nothing (momentum_buffer of SGD without momentum), or a step that is a plain number.
  Status ReadPlainState(const DcpBytes& bytes, const DcpPlace& place,
                        const std::optional<nlohmann::json>& plain) {
    if (plain && plain->is_null()) return OkStatus();
    if (IsAllowed(options_, bytes.name) || IsAllowed(options_, "optimizer")) {
      manifest_.history.push_back("left out " + bytes.name);
      return items_.Omit(Fate::kAllowed, bytes.name, bytes.item);
    }
    if (place.role == Role::kStep && plain && plain->is_number()) {
      const double step = plain->get<double>();
      if (!plain_step_) plain_step_ = step;
      if (*plain_step_ == step && (!manifest_.state.contains("optimizer_step") ||
                                   manifest_.state["optimizer_step"].get<double>() == step)) {
        manifest_.state["optimizer_step"] = step;
        return OkStatus();
      }
    }
    return NotSupported(
        "{}: {} is not a tensor, and it is unknown or differs between parameters; --allow '{}' leaves it "
        "out, --allow optimizer the whole optimizer",
        path_, bytes.name, bytes.name);
  }

  static bool IsProgress(const std::string& name, const std::vector<std::string>& path) {
    const auto names = ProgressNames();
    return std::ranges::find(names, path.empty() ? name : path.back()) != names.end() ||
           std::ranges::find(names, LastOf(name)) != names.end();
  }
  static std::string_view LastOf(std::string_view name) { return name.substr(name.rfind('.') + 1); }

  // A number of a scheduler does not say how far the training is.
  void TakeNumber(const std::string& name, const std::vector<std::string>& path, double number) {
    const std::string key(path.empty() || path.back() == name ? LastOf(name) : std::string_view(path.back()));
    if (IsProgress(name, path) && name.find("schedul") == std::string::npos)
      AddState(key, number);
    else
      manifest_.state["other"][name] = number;
  }

  void AddState(const std::string& key, double number) {
    if (key != "lr" && number >= 0 && number < 9e15)
      manifest_.state[key] = static_cast<int64_t>(number);
    else
      manifest_.state[key] = number;
  }

  FileSystem& fs_;
  const std::string path_;
  ReaderOptions& options_;
  const DcpIndex& index_;
  const DcpOptimizers optimizers_;
  StoredBuilder builder_;
  DcpItems items_;
  Manifest manifest_;
  std::set<std::string> unread_;  // the start of names of optimizers that are kept as they are
  bool leave_optimizer_ = false;  // as some of it cannot be read
  bool one_step_ = false;         // of all parameters
  std::optional<double> plain_step_;
  DcpParamGroups groups_{optimizers_};
  bool is_own_ = false;                                      // our own writer wrote it
  nlohmann::json own_others_;                                // kDcpOthers, as our writer lists them
  std::set<std::string, std::less<>> others_;                // of neither model nor optimizer
  std::map<std::string, ParameterSpec, std::less<>> specs_;  // if our own writer wrote them
};

}  // namespace

bool MatchesDcp(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok() || !info->is_directory()) return false;
  if (HoldsDcp(fs, path)) return true;
  const auto names = fs.List(path);
  return names.ok() && (HoldsDcpSlices(*names) || std::ranges::any_of(*names, [](const std::string& n) {
                          return n.ends_with(".distcp");
                        }));
}

Result<std::unique_ptr<ForeignSource>> OpenDcp(FileSystem& fs, const std::string& path,
                                               ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(DcpIndex index, ReadAny(fs, path, options));
  return OpenDcpIndex(fs, path, options, std::move(index));
}

Result<std::unique_ptr<ForeignSource>> OpenDcpIndex(FileSystem& fs, const std::string& path,
                                                    ReaderOptions& options, DcpIndex index) {
  const auto is_state = [optimizers = OptimizersOf(index)](const std::string& name) {
    return IsOfDcpOptimizers(name, optimizers.starts) || DcpStatePlace(name, optimizers);
  };
  DropLostStates(fs, path, options, is_state, index);
  return DcpReader(fs, path, options, index).Open();
}

Result<StoredNames> NamesOfDcp(FileSystem& fs, const std::string& path) {
  ReaderOptions options{OpenOptions{.allow = {"ranks"}}, {}};
  CAIRN_ASSIGN_OR_RETURN(const DcpIndex index, ReadAny(fs, path, options));
  return NamesOfDcpIndex(index);
}

StoredNames NamesOfDcpIndex(const DcpIndex& index) {
  const std::vector<DcpPlace> places = PlaceDcpTensors(NamesOf(index), OptimizersOf(index));
  StoredNames names;
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i].role == Role::kWeight)
      names.tensors.push_back(
          {{.name = places[i].parameter, .shape = index.tensors[i].shape}, Role::kWeight});
  return names;
}

}  // namespace cairn
