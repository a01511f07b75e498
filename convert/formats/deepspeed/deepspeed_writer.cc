// Both planners choose tensors and types, cut the model into what each model parallel rank holds, and part
// the optimizer's groups. ShardedPlanner then emits model states and ZeRO shards for each rank, and a
// pipeline's layer files. UniversalPlanner emits the model states, and cuts again with TP and PP of 1, so
// that each parameter is whole. No data is read or written: pickles are emitted, tensors get storages, and
// Place() lays them out.

#include <algorithm>
#include <map>

#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/deepspeed/deepspeed_files.h"
#include "convert/formats/deepspeed/mixtures.h"
#include "convert/formats/deepspeed/model_states.h"

namespace cairn {
namespace {

// The base of both forms' planners.
class DeepSpeedPlanner {
 public:
  DeepSpeedPlanner(const CheckpointSource& source, const TargetOptions& options)
      : source_(source), options_(options), state_(TrainingStateOf(source)) {}

 protected:
  Status Choose(std::optional<Dtype> dtype) {
    topology_ = options_.topology;
    CAIRN_ASSIGN_OR_RETURN(tensors_, ChooseTrainingTensors(source_, dtype));
    // Only masters, as ZeRO-3 leaves them: the training looks for files of the type that it computes in.
    if (!dtype && tensors_.optimizer && tensors_.weight_type() == Dtype::kF32 && state_.params_dtype) {
      CAIRN_ASSIGN_OR_RETURN(tensors_, ChooseTrainingTensors(source_, state_.params_dtype));
    }
    CAIRN_RETURN_IF_ERROR(FitStates(places_, options_.allow_optimizer, tensors_, state_));
    for (const TrainingParameter& parameter : tensors_.parameters)
      if (IsOfExpert(parameter.spec.name))
        return NotSupported("{}: the files of DeepSpeed-MoE's experts are not written; choose --to dcp",
                            parameter.spec.name);
    for (const TrainingParameter& parameter : tensors_.parameters)
      if (parameter.has_state() && !parameter.master && TypeOf(parameter) != Dtype::kF32)
        return NotSupported("{} has an optimizer's state and neither a master nor fp32 weights",
                            parameter.spec.name);
    if (!tensors_.optimizer)
      state_.notes.push_back(
          "the optimizer's state is missing: load it with load_module_only, or as a fine-tuning");
    else if (state_.param_groups.empty())
      state_.notes.push_back(AdamWDefaultsInWords());
    if (state_.schedule.empty()) state_.notes.push_back("no schedule of the learning rate is carried");
    return OkStatus();
  }

  Status Cut() {
    CAIRN_ASSIGN_OR_RETURN(model_, LocalModelOf(source_, tensors_, topology_));
    if (tensors_.optimizer) return CutGroups();
    state_.groups.hyper.assign(1, nlohmann::json::object());
    return OkStatus();
  }

  // The source's groups, unless the user asks for others. If the source names none, a model with Megatron's
  // names gets Megatron's groups, any other model one group.
  Status CutGroups() {
    const bool plain = model_.names == LocalNames::kPlain;
    const size_t known = state_.param_groups.size();
    const size_t count = options_.param_groups != 0 ? static_cast<size_t>(options_.param_groups)
                         : known == 0               ? (plain ? 1 : 2)
                                                    : 0;
    auto groups = GroupsOfSource(state_.param_groups, tensors_);
    if (!groups.ok() && count != 0)  // the user asks for it
      groups = GroupsOfSource(nlohmann::json::array({state_.param_groups[0]}), tensors_);
    if (!groups.ok()) return groups.status();
    state_.groups = *std::move(groups);
    const auto rule = [&](const ParameterSpec& spec) { return count == 1 ? 0 : MatricesThenVectors(spec); };
    if (count != 0)
      CAIRN_RETURN_IF_ERROR(PartGroups(tensors_, count, rule, options_.allow_optimizer, state_));
    for (const auto& held : model_.ranks)
      for (const LocalTensor& local : held) CAIRN_RETURN_IF_ERROR(CheckOneGroup(local));
    return OkStatus();
  }

  // The parameters that are fused in one tensor must be of one group.
  Status CheckOneGroup(const LocalTensor& local) const {
    const auto name = [&](const MegatronPart& part) -> const std::string& {
      return tensors_.parameters[part.parameter].spec.name;
    };
    const auto group = [&](const MegatronPart& part) {
      const bool frozen = !tensors_.parameters[part.parameter].has_state();
      return frozen ? std::nullopt : std::optional(state_.groups.GroupOf(name(part)));
    };
    for (const MegatronPart& part : local.parts)
      if (group(part) != group(local.parts[0]))
        return NotSupported("{} and {} are one tensor, {}, but in two groups of the optimizer", name(part),
                            name(local.parts[0]), local.name);
    return OkStatus();
  }

  // A group is one vector of each state.
  Status CheckStatesOfGroups() const {
    std::map<size_t, const TrainingParameter*> firsts;
    for (const TrainingParameter& parameter : tensors_.parameters) {
      if (!parameter.has_state()) continue;
      const size_t group = state_.groups.GroupOf(parameter.spec.name);
      const TrainingParameter& first = *firsts.try_emplace(group, &parameter).first->second;
      if (parameter.roles() != first.roles())
        return NotSupported(
            "{} and {} share a group of the optimizer, which keeps other states of the one than of the "
            "other; "
            "--to universal, dcp and native hold them",
            first.spec.name, parameter.spec.name);
    }
    return OkStatus();
  }

  Dtype TypeOf(const TrainingParameter& parameter) const {
    return tensors_.tensors[parameter.weight].entry.dtype;
  }
  ZeroJob Job(const std::string& directory) const {
    const bool plain = model_.names == LocalNames::kPlain;
    return {tensors_,  state_, topology_,
            directory, plain,  state_.round_robin_gradients && topology_.zero < 3};
  }
  std::string StepName() const { return fmt::format("{}{}", kDeepSpeedStep, state_.iteration); }
  const Model& described() const { return source_.manifest().model; }

  const CheckpointSource& source_;
  const TargetOptions& options_;
  TrainingState state_;
  Topology topology_;
  TrainingTensors tensors_;
  LocalModel model_;
  StatePlaces places_ = kZeroPlaces;
  TargetBuilder builder_;
};

class ShardedPlanner : public DeepSpeedPlanner {
 public:
  using DeepSpeedPlanner::DeepSpeedPlanner;

  Result<TargetFiles> Plan() {
    CAIRN_RETURN_IF_ERROR(Choose(options_.dtype));
    if (topology_.zero == 0) topology_.zero = 1;
    if (topology_.zero == 3 && !tensors_.optimizer)
      return NotSupported(
          "ZeRO 3 keeps weights in the optimizer's shards, and this checkpoint has no optimizer; choose "
          "--zero 1");
    CAIRN_RETURN_IF_ERROR(Cut());
    CAIRN_RETURN_IF_ERROR(CheckStatesOfGroups());
    builder_.target.tensors = tensors_.tensors;
    if (topology_.zero == 3) MastersAreWeights();
    const std::string directory = StepName();
    const ZeroJob job = Job(directory);
    if (job.round_robin && tensors_.optimizer)
      state_.notes.push_back(
          "the optimizer's order is that of round_robin_gradients, which its ds_config enables: enable it to "
          "load this");
    for (size_t rank = 0; rank < model_.ranks.size(); ++rank) {
      AddModelStates(job, static_cast<int>(rank));
      if (tensors_.optimizer) AddZeroShards(job, model_.ranks[rank], static_cast<int>(rank), builder_);
    }
    if (model_.names == LocalNames::kPipeline) AddLayers(directory);
    builder_.Place();
    builder_.AddText(std::string(kDeepSpeedTracker), StepName());
    return TargetFiles{std::move(builder_.target), "", std::move(state_.notes)};
  }

 private:
  // ZeRO 3 stores no other weights of the parameters that are trained.
  void MastersAreWeights() {
    for (const TrainingParameter& parameter : tensors_.parameters) {
      if (!parameter.master || !parameter.has_state()) continue;
      builder_.target.tensors[parameter.weight].read_back = false;
      builder_.target.tensors[*parameter.master].entry.role = Role::kWeight;
    }
  }

  void AddModelStates(const ZeroJob& job, int rank) {
    const std::vector<LocalTensor>& held = model_.ranks[rank];
    const bool zero3 = topology_.zero == 3;
    std::vector<std::pair<const LocalTensor*, StoredArray>> frozen;
    for (const LocalTensor& local : held)
      if (const auto& parameter = tensors_.parameters[local.parts[0].parameter];
          zero3 && !parameter.has_state())
        frozen.push_back({&local, {local.name, TypeOf(parameter), local.shape}});
    for (int d = 0; d < (zero3 ? topology_.dp : 1); ++d) {
      const std::string prefix = zero3 ? fmt::format("zero_pp_rank_{}_", d) : "";
      const uint32_t zip = builder_.BeginTorchFile(
          fmt::format("{}/{}mp_rank_{:02}_model_states.pt", job.directory, prefix, rank));
      PickleEmitter& p = builder_.pickle(zip);
      const auto emit_frozen = [&](std::string_view key) {
        p.BeginDict();
        for (auto& [local, array] : frozen) {
          p.Text(local->name);
          key == "frozen_param_shapes" ? p.TorchSize(array.shape)
                                       : EmitFragment(zip, static_cast<uint64_t>(d), array);
        }
        p.EndDict();
      };
      p.BeginDict();
      p.Text("module");
      EmitModule(zip, held);
      EmitModelStates(p, job, model_, described(), held,
                      zero3 ? emit_frozen : std::function<void(std::string_view)>());
      p.EndDict();
    }
    for (auto& [local, array] : frozen)
      AddParts(tensors_, *local, Role::kWeight, builder_.AddArray(std::move(array)), builder_.target);
  }

  // The piece of data parallel rank `d` of a frozen parameter, as its trained ones are cut.
  void EmitFragment(uint32_t zip, uint64_t d, StoredArray& array) {
    const auto ranks = static_cast<uint64_t>(topology_.dp);
    const uint64_t volume = array.shape.Volume(), piece = (volume + ranks - 1) / ranks;
    const uint64_t from = std::min(volume, d * piece), to = std::min(volume, from + piece);
    const uint32_t storage = builder_.EmitTensor(zip, array.dtype, {piece});
    if (from < to) array.extents.push_back({{from, to}, storage, 0});
  }

  // A pipeline's is in its layer files; that of ZeRO-3 has empty tensors.
  void EmitModule(uint32_t zip, const std::vector<LocalTensor>& held) {
    PickleEmitter& p = builder_.pickle(zip);
    if (model_.names == LocalNames::kPipeline) return p.None();
    p.BeginOrderedDict();
    for (const LocalTensor& local : held) {
      p.Text(local.name);
      EmitWeight(zip, local, topology_.zero == 3);
    }
    for (const auto& [second, first] : state_.shared_params.items()) {
      const auto local = std::ranges::find(held, first.get<std::string>(), &LocalTensor::name);
      if (local == held.end()) continue;  // Megatron has its own names
      p.Text(second);
      EmitWeight(zip, *local, topology_.zero == 3);
    }
    p.EndDict();
  }

  void EmitWeight(uint32_t zip, const LocalTensor& local, bool empty) {
    const Dtype dtype = TypeOf(tensors_.parameters[local.parts[0].parameter]);
    if (empty) return (void)builder_.EmitTensor(zip, dtype, {0});
    AddParts(tensors_, local, Role::kWeight, builder_.EmitArray(zip, dtype, local.shape), builder_.target);
  }

  void AddLayers(const std::string& directory) {
    for (size_t rank = 0; rank < model_.ranks.size(); ++rank) {
      std::map<int, std::vector<const LocalTensor*>> layers;
      for (const LocalTensor& local : model_.ranks[rank])
        if (!local.copy) layers[local.pipeline_layer].push_back(&local);
      for (const auto& [layer, held] : layers) {
        const uint32_t zip = builder_.BeginTorchFile(
            fmt::format("{}/layer_{:02}-model_{:02}-model_states.pt", directory, layer, rank % topology_.tp));
        builder_.pickle(zip).BeginOrderedDict();
        for (const LocalTensor* local : held) {
          builder_.pickle(zip).Text(local->file_name);
          EmitWeight(zip, *local, false);
        }
        builder_.pickle(zip).EndDict();
      }
    }
  }
};

class UniversalPlanner : public DeepSpeedPlanner {
 public:
  using DeepSpeedPlanner::DeepSpeedPlanner;

  Result<TargetFiles> Plan() {
    if (described().empty())
      places_.steps = Steps::kOfEach;      // Megatron's tensors are several parameters, of one step
    state_.round_robin_gradients = false;  // parameters are by name
    CAIRN_RETURN_IF_ERROR(Choose(Dtype::kF32));
    // The arguments in its model states are those of the training that it came from.
    if (topology_.zero == 0) topology_.zero = 1;
    CAIRN_RETURN_IF_ERROR(Cut());
    builder_.target.tensors = tensors_.tensors;
    const std::string directory = StepName() + "_universal";
    const ZeroJob job = Job(directory);
    for (size_t rank = 0; rank < model_.ranks.size(); ++rank)
      for (const char* prefix : {"", "zero_pp_rank_0_"})  // of ZeRO 1 and 2; of ZeRO 3
        AddModelStates(job, prefix, static_cast<int>(rank));
    const Topology topology = topology_;
    topology_.tp = topology_.pp = 1;
    topology_.layers_per_stage.clear();
    CAIRN_RETURN_IF_ERROR(Cut());
    for (const LocalTensor& local : model_.ranks[0]) AddParameter(directory, local);
    if (tensors_.optimizer) AddOptimizerState(job, directory);
    topology_ = topology;
    builder_.Place();
    builder_.AddText(kUniversalTracker, directory);
    return TargetFiles{std::move(builder_.target), directory, std::move(state_.notes)};
  }

 private:
  void AddModelStates(const ZeroJob& job, const char* prefix, int rank) {
    const uint32_t zip = builder_.BeginTorchFile(
        fmt::format("{}/{}mp_rank_{:02}_model_states.pt", job.directory, prefix, rank));
    PickleEmitter& p = builder_.pickle(zip);
    p.BeginDict();
    p.Entry("module", nullptr);
    EmitModelStates(p, job, model_, described(), model_.ranks[rank]);
    p.EndDict();
  }

  // The vocabulary without its padding, which each training adds again.
  void AddParameter(const std::string& directory, LocalTensor local) {
    const TrainingParameter& parameter = tensors_.parameters[local.parts[0].parameter];
    if (local.is_vocabulary()) local.shape = parameter.spec.shape;
    const std::string folder = fmt::format("{}/zero/{}/", directory, local.name);
    std::vector<Role> roles = parameter.roles();
    roles.insert(roles.begin(), Role::kMaster);  // or the weight, if that has 32 bits
    for (const Role& role : roles) {
      const uint32_t zip = builder_.BeginTorchFile(fmt::format("{}{}.pt", folder, places_.NameOf(role)));
      PickleEmitter& p = builder_.pickle(zip);
      p.BeginDict();
      p.Text("param");
      AddParts(tensors_, local, role, builder_.EmitArray(zip, Dtype::kF32, local.shape), builder_.target);
      if (!local.cuts.empty()) p.Entry("cat_dim", local.cuts[0].dim);
      if (local.is_vocabulary()) p.Entry("vocab_tensor", true);
      if (local.gated) p.Entry("param_n_sub_params", 2);
      p.EndDict();
    }
    if (!parameter.has_state()) return;
    const uint32_t zip = builder_.BeginTorchFile(folder + "step.pt");
    if (!parameter.step) return builder_.EmitScalar(zip, static_cast<float>(state_.optimizer_step));
    const uint32_t array = builder_.EmitArray(zip, tensors_.tensors[*parameter.step].entry.dtype, {});
    builder_.target.parts.push_back({{}, *parameter.step, array});
  }

  // ZeRO 1 and 2 look for entries at the top, ZeRO 3 for entries in a nested dict.
  void AddOptimizerState(const ZeroJob& job, const std::string& directory) {
    const uint32_t zip = builder_.BeginTorchFile(directory + "/zero/optimizer_state.pt");
    PickleEmitter& p = builder_.pickle(zip);
    p.BeginDict();
    EmitLossScale(p, state_);
    p.Text("zero_stage");
    EmitZeroStage(p, job.topology.zero);
    p.Entry("ds_version", kDeepSpeedVersion);
    EmitParamGroups(p);
    p.Text("optimizer_state_dict");
    p.BeginDict();
    p.Text("state");
    p.BeginDict();
    p.Int(0);
    p.BeginDict();
    p.Text("step");
    builder_.EmitScalar(zip, static_cast<float>(state_.optimizer_step));
    p.EndDict();
    p.EndDict();
    EmitParamGroups(p);
    p.EndDict();
    p.EndDict();
  }

  void EmitParamGroups(PickleEmitter& p) const {
    p.Text("param_groups");
    p.BeginList();
    for (size_t g = 0; g < state_.groups.size(); ++g) EmitParamGroup(p, state_, g, {g});
    p.EndList();
  }
};

}  // namespace

Result<TargetFiles> PlanMegatronDeepSpeed(const CheckpointSource& source, const TargetOptions& options) {
  return ShardedPlanner(source, options).Plan();
}

Result<TargetFiles> PlanUniversal(const CheckpointSource& source, const TargetOptions& options) {
  return UniversalPlanner(source, options).Plan();
}

}  // namespace cairn
