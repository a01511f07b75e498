// Each tensor is cut into boxes: its slices (ckpt/model/slice.h), then rows of them over data parallel ranks.
// Each box is a zip in the file of its rank; a slice that several ranks hold lies in the files of the first.
// Values that are not tensors go into the first file. When all zips have their places, files without a zip
// are dropped and .metadata is made.

#include <algorithm>
#include <set>

#include "ckpt/model/placement.h"
#include "convert/foreign/target_builder.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/dcp/dcp_index.h"
#include "convert/formats/dcp/dcp_metadata.h"
#include "convert/formats/hugging_face/safetensors.h"
#include "convert/formats/training/dcp_places.h"
#include "convert/formats/training/state_places.h"
#include "convert/formats/training/training_state.h"

namespace cairn {
namespace {

class DcpPlanner {
 public:
  DcpPlanner(const CheckpointSource& source, const TargetOptions& options)
      : source_(source), options_(options), state_(TrainingStateOf(source)) {}

  Result<TargetFiles> Plan() {
    CAIRN_ASSIGN_OR_RETURN(tensors_, ChooseTrainingTensors(source_, options_.dtype));
    CAIRN_RETURN_IF_ERROR(FitStates(kDcpPlaces, options_.allow_optimizer, tensors_, state_));
    if (tensors_.optimizer) {
      CAIRN_ASSIGN_OR_RETURN(state_.groups, GroupsOfSource(state_.param_groups, tensors_));
    }
    builder_.target.tensors = tensors_.tensors;
    CAIRN_RETURN_IF_ERROR(PlaceLayers());
    for (int rank = 0; rank < options_.topology.world(); ++rank)
      builder_.AddFile(fmt::format("__{}_0.distcp", rank));
    for (const TrainingParameter& parameter : tensors_.parameters)
      CAIRN_RETURN_IF_ERROR(AddParameter(parameter));
    if (tensors_.optimizer) AddParamGroups();
    CAIRN_RETURN_IF_ERROR(AddOthers());
    CAIRN_RETURN_IF_ERROR(AddState());
    builder_.Place();
    builder_.DropEmptyFiles();
    builder_.AddText(std::string(kDcpMetadata), DcpMetadata(entries_, builder_.target));
    return TargetFiles{std::move(builder_.target), "", std::move(state_.notes)};
  }

 private:
  Status PlaceLayers() {
    CAIRN_RETURN_IF_ERROR(Validate(options_.topology));
    const int layers = CountLayers(source_.catalog().Parameters());
    if (options_.topology.pp == 1) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(layers_, LayersPerChunk(layers, options_.topology));
    return OkStatus();
  }

  int StageOfLayer(int layer) const {
    return layers_.empty() ? 0 : StageOf(layer, layers_) % options_.topology.pp;
  }

  Status AddParameter(const TrainingParameter& parameter) {
    const std::string& name = parameter.spec.name;
    CAIRN_RETURN_IF_ERROR(AddTensor(parameter.weight, Path(form_.Weight(name))));
    for (const auto& [second, first] : state_.shared_params.items())
      if (first == name) CAIRN_RETURN_IF_ERROR(AddAgain(parameter.weight, second));
    const auto add = [&](Role role, uint32_t tensor) {
      return AddTensor(tensor, Path(form_.State(name, kDcpPlaces.NameOf(role))));
    };
    for (const auto& [role, tensor] : parameter.states) CAIRN_RETURN_IF_ERROR(add(role, tensor));
    if (parameter.master && parameter.has_state())
      CAIRN_RETURN_IF_ERROR(add(Role::kMaster, *parameter.master));
    if (parameter.step) return add(Role::kStep, *parameter.step);
    if (parameter.has_state()) AddStep(parameter);
    return OkStatus();
  }

  // The step of all parameters.
  void AddStep(const TrainingParameter& parameter) {
    if (!state_.step_known && !state_.adam) return;
    DcpEntry& step = Add(Path(form_.State(parameter.spec.name, "step")));
    step.dtype = Dtype::kF32;
    const uint32_t zip = builder_.BeginZip(FirstRankOf(parameter.spec), "archive");
    builder_.EmitScalar(zip, static_cast<float>(state_.optimizer_step));
    step.chunks.emplace_back(Box{}, zip);
  }

  // A weight under a second name, which readers take for a separate tensor.
  Status AddAgain(uint32_t weight, const std::string& name) {
    WrittenTensor again = tensors_.tensors[weight];
    again.entry.spec.name = name;
    tensors_.tensors.push_back(again);
    builder_.target.tensors.push_back(std::move(again));
    return AddTensor(static_cast<uint32_t>(tensors_.tensors.size() - 1), Path(form_.Weight(name)));
  }

  static std::vector<nlohmann::json> Path(const DcpForm::Keys& keys) {
    return std::vector<nlohmann::json>(keys.begin(), keys.end());
  }

  DcpEntry& Add(std::vector<nlohmann::json> path) {
    DcpEntry entry;
    for (const auto& part : path)
      entry.name +=
          (entry.name.empty() ? "" : ".") + (part.is_string() ? part.get<std::string>() : part.dump());
    entry.path = std::move(path);
    return entries_.emplace_back(std::move(entry));
  }

  // The first rank of its stage.
  uint32_t FirstRankOf(const ParameterSpec& spec) const {
    return static_cast<uint32_t>(options_.topology.Moved(0, Axis::kPp, StageOfLayer(spec.layer)));
  }

  // True if another rank before it holds the same slice.
  bool IsCopy(const ParameterSpec& spec, int rank) const {
    return std::ranges::any_of(spec.axes(), [&](Axis axis) {
      return options_.topology.Coordinate(rank, axis) > 0 && !IsCutAlong(spec, axis);
    });
  }

  Status AddTensor(uint32_t index, std::vector<nlohmann::json> path) {
    const TensorEntry& tensor = tensors_.tensors[index].entry;
    DcpEntry& entry = Add(std::move(path));
    entry.dtype = tensor.dtype;
    entry.shape = tensor.spec.shape;
    // As DTensors are cut: evenly, wherever heads and the padding of a vocabulary end.
    ParameterSpec spec = tensor.spec;
    for (Cut& cut : spec.cuts) cut.unit = cut.pad = 1;
    const auto first = static_cast<int>(FirstRankOf(spec));
    const Axis data = DataAxisOf(spec);
    const int model_ranks = options_.topology.stage_size() / options_.topology.size(data);
    for (int holder = first; holder < first + model_ranks; ++holder) {
      if (IsCopy(spec, holder)) continue;
      CAIRN_ASSIGN_OR_RETURN(const Slice slice, SliceOf(spec, options_.topology, holder));
      for (const int rank : options_.topology.GroupOf(holder, data)) {
        Box box = slice.box;
        if (box.rank() > 0) {
          CAIRN_ASSIGN_OR_RETURN(
              const Slice rows,
              SliceOf({.name = spec.name, .shape = box.extent, .cuts = {{.axis = data, .pad = 1}}},
                      options_.topology, rank));
          box.offset[0] += rows.box.offset[0];
          box.extent = rows.box.extent;
        }
        if (box.Volume() > 0) AddChunk(index, tensor, box, static_cast<uint32_t>(rank), entry);
        if (box.rank() == 0) break;
      }
    }
    return OkStatus();
  }

  void AddChunk(uint32_t index, const TensorEntry& tensor, const Box& box, uint32_t file, DcpEntry& entry) {
    const uint32_t zip = builder_.BeginZip(file, "archive");
    const uint32_t array = builder_.EmitArray(zip, tensor.dtype, box.extent);
    builder_.target.parts.push_back({{box, Box::Whole(box.extent)}, index, array});
    entry.chunks.emplace_back(box, zip);
  }

  // A value that is not a tensor goes into the first file.
  void AddValue(std::vector<nlohmann::json> path, const nlohmann::json& value) {
    const bool tuple = path.back().get<std::string>().ends_with("betas");
    DcpEntry& entry = Add(std::move(path));
    const uint32_t zip = builder_.BeginZip(0, "archive");
    PickleEmitter& pickle = builder_.pickle(zip);
    if (tuple && value.is_array()) {
      pickle.BeginTuple();
      for (const auto& item : value) pickle.Json(item);
      pickle.EndTuple();
    } else {
      pickle.Json(value);
    }
    entry.chunks.emplace_back(Box{}, zip);
  }

  void AddParamGroups() {
    if (state_.param_groups.empty()) state_.notes.push_back(AdamWDefaultsInWords());
    std::set<std::string> held;
    for (const TrainingParameter& parameter : tensors_.parameters) held.insert(parameter.spec.name);
    for (size_t g = 0; g < state_.groups.size(); ++g) {
      nlohmann::json group = ParamGroup(state_, g);
      std::vector<std::string> members = state_.groups.MembersOf(g);
      std::erase_if(members, [&](const std::string& name) { return !held.contains(name); });
      group.erase("params");
      if (!form_.flat) group["params"] = members;
      for (const auto& [key, value] : group.items()) AddHyperParameter(g, members, key, value);
    }
  }

  void AddHyperParameter(size_t group, const std::vector<std::string>& members, const std::string& key,
                         const nlohmann::json& value) {
    std::vector<nlohmann::json> path = Path(form_.optimizer);
    if (!form_.flat) {
      path.emplace_back("param_groups");
      path.emplace_back(group);
      path.emplace_back(key);
      return AddValue(std::move(path), value);
    }
    for (const std::string& name : members) {
      std::vector<nlohmann::json> own = path;
      own.push_back(fmt::format("param_groups.{}.{}", name, key));
      AddValue(std::move(own), value);
    }
  }

  // The training's own tensors and objects, under the names and paths that they had. One whose name is taken
  // is left behind.
  Status AddOthers() {
    const nlohmann::json paths = source_.manifest().state.value(kDcpOthers, nlohmann::json());
    std::set<std::string> taken = {"cairn"};
    for (const DcpEntry& entry : entries_) taken.insert(entry.name);
    const std::vector<TensorEntry>& tensors = source_.catalog().tensors;
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      const TensorEntry& tensor = tensors[i];
      const std::string& name = tensor.spec.name;
      if ((tensor.role != Role::kTraining && tensor.role != Role::kPickle) || !taken.insert(name).second)
        continue;
      const std::vector<nlohmann::json> path = PathIn(paths, name);
      tensors_.tensors.push_back({i, tensor, true});
      builder_.target.tensors.push_back(tensors_.tensors.back());
      const auto index = static_cast<uint32_t>(tensors_.tensors.size() - 1);
      if (tensor.role == Role::kTraining)
        CAIRN_RETURN_IF_ERROR(AddTensor(index, path));
      else
        AddObject(index, path);
      entries_.back().name = name;
      others_[name] = path;
    }
    return OkStatus();
  }

  static std::vector<nlohmann::json> PathIn(const nlohmann::json& paths, const std::string& name) {
    const auto found = paths.find(name);
    const auto is_key = [](const nlohmann::json& part) {
      return part.is_string() || part.is_number_integer();
    };
    if (!paths.is_object() || found == paths.end() || !found->is_array() || found->empty() ||
        !std::ranges::all_of(*found, is_key))
      return {name};
    return found->get<std::vector<nlohmann::json>>();
  }

  void AddObject(uint32_t index, std::vector<nlohmann::json> path) {
    const uint64_t bytes = tensors_.tensors[index].entry.bytes();
    DcpEntry& entry = Add(std::move(path));
    const uint32_t item = builder_.AddBytes(0, bytes);
    const auto array = static_cast<uint32_t>(builder_.target.arrays.size() - 1);
    builder_.target.parts.push_back({{Box::Whole({bytes}), Box::Whole({bytes})}, index, array});
    entry.chunks.emplace_back(Box{}, item);
  }

  Status AddState() {
    const Manifest& manifest = source_.manifest();
    for (const auto& [key, value] :
         {std::pair("iteration", state_.iteration), std::pair("consumed_samples", state_.consumed_samples),
          std::pair("consumed_tokens", state_.consumed_tokens)})
      if (!others_.contains(std::string("train.") + key)) AddValue({"train", key}, value);
    nlohmann::json state = manifest.state;
    state.erase(kDcpOthers);
    if (!others_.empty()) state[kDcpOthers] = others_;
    const nlohmann::json own = {{"model", manifest.model},
                                {"parameters", EncodeParameters(source_.catalog().Parameters())},
                                {"state", std::move(state)},
                                {"history", HistoryWith(manifest, "dcp", state_.notes)},
                                {"step", manifest.step}};
    AddValue({"cairn"}, own.dump());
    return OkStatus();
  }

  const CheckpointSource& source_;
  const TargetOptions& options_;
  const DcpForm form_ = DcpFormOf(source_.manifest().state);
  TrainingState state_;
  TrainingTensors tensors_;
  std::vector<int> layers_;  // of each pipeline chunk
  std::vector<DcpEntry> entries_;
  nlohmann::json others_ = nlohmann::json::object();  // kDcpOthers of the result
  TargetBuilder builder_;
};

}  // namespace

Result<TargetFiles> PlanDcp(const CheckpointSource& source, const TargetOptions& options) {
  return DcpPlanner(source, options).Plan();
}

}  // namespace cairn
