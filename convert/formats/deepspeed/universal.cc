// Model states come first: they hold the arguments, and the shapes that ZeRO-3 flattened. Then the
// directories are listed by name. The model is Megatron's only if Megatron has each of the names and there
// are args; otherwise all names are kept. Then each file of a parameter's directory becomes the tensor of one
// role. Last come the modules beside them: buffers of an unknown model are stored only there and are read;
// everything else is a replica in the account.

#include <algorithm>
#include <map>
#include <set>

#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/deepspeed/pipeline_layers.h"
#include "convert/formats/megatron_model/megatron_model.h"
#include "convert/formats/megatron_model/megatron_names.h"
#include "convert/formats/megatron_model/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/formats/training/param_groups.h"
#include "convert/formats/training/state_places.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

// A pipeline's names as Megatron's. The other names of a layer show which module it is.
std::map<std::string, MegatronName> MegatronNames(const std::vector<std::string>& names) {
  std::map<int, Shapes> layers;
  for (const std::string& name : names)
    if (const auto parsed = ParsePipelineName(name)) layers[parsed->layer][parsed->rest];
  const std::map<int, std::string> prefixes = MegatronPrefixes(layers);
  std::map<std::string, MegatronName> found;
  for (const std::string& name : names) {
    const auto parsed = ParsePipelineName(name);
    const std::string full = parsed ? prefixes.at(parsed->layer) + parsed->rest : name;
    if (const auto place = ParseMegatronName(full)) found.emplace(name, *place);
  }
  return found;
}

// True for a tensor of zero/optimizer_state.pt that is one rank's part of the states that the files of the
// parameters hold: a role's, or a flat group of ZeRO-3.
bool IsPartOfStates(const std::string& key) {
  const auto role = ParseRole(std::string_view(key).substr(key.rfind('.') + 1));
  return (role && IsOptimizerState(*role)) || key.find("fp32_flat_groups.") != key.npos;
}

class UniversalOpener {
 public:
  UniversalOpener(FileSystem& fs, std::string directory, ReaderOptions& options)
      : fs_(fs), directory_(std::move(directory)), options_(options) {}

  Result<std::unique_ptr<ForeignSource>> Open() {
    CAIRN_RETURN_IF_ERROR(ReadModelStates());
    CAIRN_RETURN_IF_ERROR(ListNames());
    CAIRN_RETURN_IF_ERROR(ReadOptimizerState());
    const std::map<std::string, MegatronName> places = MegatronNames(names_);
    const bool megatron = places.size() == names_.size() && args_;
    if (megatron) {
      const bool tied = std::ranges::none_of(places, [](const auto& p) { return IsHead(p.second.name); });
      auto read = ReadMegatronArgs(*args_, 3, tied, options_);
      if (!read.ok()) return read.status().WithContext(directory_);
      shape_ = std::move(read->shape);
      manifest_.model = std::move(read->model);
      const uint64_t vocab =
          options_.vocab_size > 0 ? options_.vocab_size : OriginalVocabulary(states_[0].root());
      if (vocab > 0 && std::cmp_less_equal(vocab, shape_.vocab))
        manifest_.model.vocab_size = shape_.vocab = static_cast<int64_t>(vocab);
    }
    if (steps_differ_ && megatron) {
      CAIRN_RETURN_IF_ERROR(LeaveOutOptimizer(
          options_, manifest_,
          NotSupported("{}: its parameters are fused but have had different numbers of updates",
                       directory_)));
      steps_differ_ = false;
      left_out_ = true;
    }
    MegatronAssembler assembler(shape_, 1, builder_);
    for (const std::string& name : names_)
      CAIRN_RETURN_IF_ERROR(AddParameter(name, megatron ? &places.at(name) : nullptr, assembler));
    for (size_t i = 0; i < states_.size(); ++i) CAIRN_RETURN_IF_ERROR(ReadModule(i, megatron));
    if (const auto groups = manifest_.state.find("param_groups"); groups != manifest_.state.end())
      MembersOfArrays(builder_.catalog, groups_).PutInto(*groups);
    return builder_.Open(fs_, directory_, std::move(manifest_));
  }

 private:
  // The training's progress, the model's arguments, and the shapes of parameters that ZeRO-3 flattened.
  Status ReadModelStates() {
    CAIRN_ASSIGN_OR_RETURN(const DeepSpeedFiles files, FindDeepSpeedFiles(fs_, directory_));
    std::vector<std::string> names;
    for (const auto& [rank, name] : files.models) names.push_back(name);
    for (const auto& [rank, name] : files.zero3_models)
      if (rank.second == 0) names.push_back(name);
    for (const std::string& name : names) {
      CAIRN_ASSIGN_OR_RETURN(TorchFile state, TorchFile::Open(fs_, directory_, name));
      const auto groups = ParamShapesOf(state.root());
      groups_.resize(std::max(groups_.size(), groups.size()));
      for (size_t g = 0; g < groups.size(); ++g)
        for (const auto& [parameter, shape] : groups[g]) {
          groups_[g].push_back(parameter);
          if (shape) shapes_.emplace(parameter, *shape);
        }
      states_.push_back(std::move(state));
    }
    if (states_.empty()) return OkStatus();
    const PyValue& root = states_[0].root();
    args_ = Find(root, "args");
    manifest_.state = MegatronState(root);
    manifest_.step = IntField(manifest_.state, "iteration");
    CAIRN_RETURN_IF_ERROR(CheckRoundRobin(root));
    return OkStatus();
  }

  // Hyper-parameters, the number of updates and the loss scale; ZeRO-3 has them in a nested dict.
  Status ReadOptimizerState() {
    const std::string name = "zero/optimizer_state.pt";
    if (!fs_.Stat(JoinPath(directory_, name)).ok()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder_.OpenFile(fs_, directory_, name));
    const PyValue& root = file.root();
    CAIRN_RETURN_IF_ERROR(ForEachTensor(
        root,
        [&](const std::string& key, const TensorRef& tensor) {
          builder_.account.Omit(IsPartOfStates(key) ? Fate::kReplica : Fate::kTrainingState, file, tensor,
                                "optimizer_state." + key);
          return OkStatus();
        },
        [&](const std::string& key, const PyValue& value, const Status&) {
          builder_.account.OmitBelow(Fate::kTrainingState, file, value, "optimizer_state." + key);
          return OkStatus();
        }));
    const PyValue* base = Find(root, "optimizer_state_dict");
    const PyValue* groups = Find(root, "param_groups");
    if (auto plain = ParamGroupsOf(groups || !base ? groups : Find(*base, "param_groups")); !plain.empty())
      manifest_.state["param_groups"] = std::move(plain);
    PutLossScale(root, Find(root, "loss_scaler"), manifest_.state);
    return ReadSteps();
  }

  // One number if all parameters agree.
  Status ReadSteps() {
    std::set<double> steps;
    for (const std::string& name : names_) {
      const std::string own = fmt::format("zero/{}/step.pt", name);
      if (!fs_.Stat(JoinPath(directory_, own)).ok()) continue;
      CAIRN_ASSIGN_OR_RETURN(const TorchFile counter, TorchFile::Open(fs_, directory_, own));
      CAIRN_ASSIGN_OR_RETURN(const auto number, ScalarOf(fs_, counter, &counter.root()));
      if (number) steps.insert(*number);
    }
    if (steps.size() == 1) manifest_.state["optimizer_step"] = *steps.begin();
    steps_differ_ = steps.size() > 1;
    return OkStatus();
  }

  Status CheckRoundRobin(const PyValue& root) const {
    if (!manifest_.state.contains("round_robin_gradients") || AsInt(Find(root, "dp_world_size")) == 1)
      return OkStatus();
    return NotSupported(
        "{}: its training had round_robin_gradients, with which DeepSpeed's own conversion gives parameters "
        "the values of others; convert the checkpoint that it was made from",
        directory_);
  }

  Status ListNames() {
    const std::string zero = JoinPath(directory_, kUniversalFolder);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> entries, fs_.List(zero));
    for (const std::string& name : entries) {
      CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(JoinPath(zero, name)));
      if (info.is_directory()) names_.push_back(name);
    }
    if (names_.empty()) return NotFound("{}: it does not contain parameters", zero);
    for (const auto& [name, shape] : shapes_)
      if (std::ranges::find(names_, name) == names_.end())
        return NotFound("{}: is missing, although the model states have the shape of {}",
                        JoinPath(zero, name), name);
    return CheckStates(zero);
  }

  // The state in a file of a parameter's directory.
  static std::optional<Role> StateIn(const std::string& file) {
    const std::string_view key = std::string_view(file).substr(0, file.rfind('.'));
    const bool state = file.ends_with(".pt") && key != kZeroPlaces.master;
    return state ? StateRole(key) : std::nullopt;
  }

  Status CheckStates(const std::string& zero) {
    std::map<std::string, std::set<Role>, std::less<>> states;
    for (const std::string& name : names_) {
      CAIRN_ASSIGN_OR_RETURN(const auto files, fs_.List(JoinPath(zero, name)));
      for (const std::string& file : files)
        if (const auto role = StateIn(file); role && *role != Role::kStep) states[name].insert(*role);
    }
    const auto lost = LostState(states);
    if (!lost) return OkStatus();
    left_out_ = true;
    return LeaveOutOptimizer(options_, manifest_,
                             NotFound("{}/{}/{}.pt: is missing", zero, lost->first, Name(lost->second)));
  }

  // Every file of a parameter's directory is one of its states; a frozen one has only its fp32.pt.
  Status AddParameter(const std::string& name, const MegatronName* place, MegatronAssembler& assembler) {
    CAIRN_RETURN_IF_ERROR(Add(name, Role::kWeight, "fp32.pt", place, assembler));
    const std::string directory = fmt::format("zero/{}", name);
    CAIRN_ASSIGN_OR_RETURN(const auto files, fs_.List(JoinPath(directory_, directory)));
    if (steps_differ_ && files.size() > 1 && std::ranges::find(files, "step.pt") == files.end())
      return NotFound("{}: step.pt is missing beside its states, and the steps of other parameters differ",
                      JoinPath(directory_, directory));
    for (const std::string& file : files) {
      if (file == "fp32.pt") continue;
      const std::string relative = JoinPath(directory, file), key = file.substr(0, file.rfind('.'));
      if (file == "step.pt") {
        CAIRN_RETURN_IF_ERROR(steps_differ_ ? Add(name, Role::kStep, "step.pt", nullptr, assembler)
                                            : LeaveFile(Fate::kTrainingState, relative, key));
        continue;
      }
      const auto role = StateIn(file);
      bool leave = left_out_ || IsAllowed(options_, relative);
      Status added;
      if (!leave) {
        added = role ? Add(name, *role, file.c_str(), place, assembler)
                     : NotSupported("{}: {} is not an optimizer's state", directory_, relative);
        leave = added.kind() == StatusKind::kNotSupported && IsAllowed(options_, "optimizer");
      }
      if (leave) {
        if (!left_out_) manifest_.history.push_back("left out " + relative);
        CAIRN_RETURN_IF_ERROR(LeaveFile(Fate::kAllowed, relative, key));
      } else if (added.kind() == StatusKind::kNotSupported) {
        return NotSupported("{}; --allow '{}' leaves it out, --allow optimizer all that cannot be read",
                            added.message(), relative);
      } else {
        CAIRN_RETURN_IF_ERROR(added);
      }
    }
    return OkStatus();
  }

  Status LeaveFile(Fate fate, const std::string& relative, const std::string& name) {
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder_.OpenFile(fs_, directory_, relative));
    builder_.account.OmitBelow(fate, file, file.root(), name);
    return OkStatus();
  }

  // The module next to the parameters has their 16-bit weights again, and buffers, which no other file has.
  Status ReadModule(size_t state, bool megatron) {
    const TorchFile& file = states_[state];
    builder_.account.AddFile(file);
    CAIRN_RETURN_IF_ERROR(
        builder_.account.OmitRest(file, {"module", "optimizer", "frozen_param_fragments"}, options_)
            .WithContext(directory_));
    for (const char* key : {"optimizer", "frozen_param_fragments"})
      if (const PyValue* value = Find(file.root(), key))
        builder_.account.OmitBelow(Fate::kReplica, file, *value, key);
    const PyValue* module = Find(file.root(), "module");
    if (!module || module->is(PyKind::kNone)) return OkStatus();
    const std::set<std::string> known(names_.begin(), names_.end());
    return ForEachTensor(*module, [&](const std::string& key, const TensorRef& tensor) -> Status {
      const bool placeholder = tensor.shape == Dims{0} && shapes_.contains(key);
      const bool buffer = megatron && IsMegatronBuffer(key);
      if (known.contains(key) || placeholder || buffer || state > 0 || megatron) {
        builder_.account.Omit(buffer ? Fate::kBuffer : Fate::kReplica, file, tensor, key);
        return OkStatus();
      }
      CAIRN_ASSIGN_OR_RETURN(const StoredArray array, builder_.ArrayIn(file, tensor, key));
      CAIRN_ASSIGN_OR_RETURN(const uint32_t entry, builder_.Tensor({.name = key, .shape = tensor.shape},
                                                                   Role::kWeight, array.dtype));
      builder_.AddPart(entry, Box::Whole(tensor.shape), array);
      return OkStatus();
    });
  }

  Status Add(const std::string& name, Role role, const char* kind, const MegatronName* place,
             MegatronAssembler& assembler) {
    const std::string relative = fmt::format("zero/{}/{}", name, kind);
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder_.OpenFile(fs_, directory_, relative));
    const std::string path = file.path();
    const PyValue* value = file.root().is(PyKind::kTensor) ? &file.root() : Find(file.root(), "param");
    if (!value || !value->is(PyKind::kTensor)) return NotSupported("{}: it does not contain a tensor", path);
    auto array = builder_.ArrayIn(file, *value->tensor, name);
    if (!array.ok()) return array.status().WithContext(path);
    const auto known = shapes_.find(name);
    const bool flat = array->shape.rank() == 1 && known != shapes_.end() && known->second.rank() != 1;
    if (flat && known->second.Volume() != array->shape[0])
      return Corrupt("{}: {} elements are not a tensor of shape {}", path, array->shape[0],
                     ToString(known->second));
    if (flat) array->shape = known->second;
    const Dims shape = array->tensor_shape();
    if (place)
      return assembler.Add({place->name, place->layer, 0, role, *array, shape, Box::Whole(shape)})
          .WithContext(path);
    CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor,
                           builder_.Tensor({.name = name, .shape = shape}, role, array->dtype));
    builder_.AddPart(tensor, Box::Whole(shape), *array);
    return OkStatus();
  }

  FileSystem& fs_;
  const std::string directory_;
  ReaderOptions& options_;
  std::vector<TorchFile> states_;
  const PyValue* args_ = nullptr;
  std::map<std::string, Dims> shapes_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::string>> groups_;  // names in each of the optimizer's
  bool steps_differ_ = false;                     // between parameters
  bool left_out_ = false;                         // the optimizer's state
  MegatronShape shape_;
  StoredBuilder builder_;
  Manifest manifest_;
};

bool IsUniversal(FileSystem& fs, const std::string& directory) {
  const std::string zero = JoinPath(directory, kUniversalFolder);
  const auto names = fs.List(zero);
  return names.ok() && std::ranges::any_of(*names, [&](const std::string& name) {
           return fs.Stat(JoinPath(JoinPath(zero, name), "fp32.pt")).ok();
         });
}

}  // namespace

// With a `latest` beside it, a directory is the training that was converted.
bool MatchesUniversal(FileSystem& fs, const std::string& path) {
  return IsUniversal(fs, path) || (fs.Stat(JoinPath(path, kUniversalTracker)).ok() &&
                                   !fs.Stat(JoinPath(path, kDeepSpeedTracker)).ok());
}

Result<std::unique_ptr<ForeignSource>> OpenUniversal(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options) {
  if (IsUniversal(fs, path)) return UniversalOpener(fs, path, options).Open();
  CAIRN_ASSIGN_OR_RETURN(std::string directory, NamedDirectory(fs, path, kUniversalTracker));
  return UniversalOpener(fs, std::move(directory), options).Open();
}

}  // namespace cairn
