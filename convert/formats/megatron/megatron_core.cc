// The contents other than tensors of both forms of Megatron's checkpoints: arguments, schedule, groups of the
// optimizer, the loss scale, and notes on what a user must start the training with.

#include "convert/formats/megatron/megatron_core.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/placement.h"

namespace cairn {
namespace {

constexpr double kInitialLossScale = 4294967296.0;  // --initial-loss-scale
constexpr int64_t kHysteresis = 2;                  // --hysteresis

bool AllEqual(std::span<const int> layers) {
  return std::ranges::adjacent_find(layers, std::ranges::not_equal_to()) == layers.end();
}

// Megatron cuts its pipeline evenly, except for the first and the last stage. `layers`: of each pipeline
// chunk. Errors: NotSupported, for a cut that its arguments cannot express.
Status CheckCoreLayers(const std::vector<int>& layers, int virtual_stages) {
  if (AllEqual(layers) || (virtual_stages == 1 && AllEqual(std::span(layers).subspan(1, layers.size() - 2))))
    return OkStatus();
  return NotSupported(
      "Megatron cannot have stages of {} layers: {}; choose another --pp or --layers-per-stage",
      fmt::join(layers, ", "),
      virtual_stages == 1 ? "all but the first and the last must have the same number"
                          : "interleaved chunks must have the same number");
}

// Sets the groups of `state`. Groups of Megatron's own stay unchanged; those of another program become
// matrices, which have weight decay, and vectors. Errors: those of PartGroups; NotSupported if vectors have a
// weight decay that Megatron cannot give them; with `allowed` that is a note.
Status ChooseCoreGroups(const TrainingTensors& tensors, bool allowed, TrainingState& state) {
  CAIRN_ASSIGN_OR_RETURN(state.groups, GroupsOfSource(state.param_groups, tensors));
  const auto its_own = [](const nlohmann::json& group) { return group.contains("wd_mult"); };
  if (std::ranges::all_of(state.groups.hyper, its_own)) return OkStatus();
  CAIRN_RETURN_IF_ERROR(PartGroups(tensors, 2, MatricesThenVectors, allowed, state));
  const auto decay = [&](size_t group) {
    const nlohmann::json decay = state.groups.hyper[group].value("weight_decay", nlohmann::json());
    return decay.is_number() ? decay.get<double>() : 0.0;
  };
  if (decay(1) == 0 || state.groups.MembersOf(1).empty()) return OkStatus();
  if (decay(1) != decay(0) && !allowed)
    return NotSupported(
        "the optimizer has weight decay {} for vectors and {} for matrices; Megatron's has none for vectors; "
        "--allow optimizer takes Megatron's",
        decay(1), decay(0));
  state.notes.push_back(fmt::format("{}vectors had weight decay {}; Megatron's optimizer gives them none",
                                    decay(1) != decay(0) ? kAllowedNote : "", decay(1)));
  return OkStatus();
}

// Sets the groups of experts, if these have an optimizer of their own (`apart`), after those of the others.
void PartExperts(const TrainingTensors& tensors, bool apart, OptimizerGroups& groups) {
  OptimizerGroups parted;
  std::map<std::string, size_t> numbers;  // by the hyper-parameters
  std::vector<size_t> sizes;
  std::set<std::string_view> of_experts;
  for (const TrainingParameter& parameter : tensors.parameters)
    if (parameter.spec.of_experts) of_experts.insert(parameter.spec.name);
  const auto add = [&](bool experts) {
    for (size_t g = 0; g < groups.size(); ++g)
      for (const std::string& name : groups.MembersOf(g)) {
        if (apart && of_experts.contains(name) != experts) continue;
        nlohmann::json hyper = groups.hyper[g];
        hyper["is_expert_parallel"] = experts;
        hyper.emplace("wd_mult", g == 0 ? 1.0 : 0.0);
        const auto [at, is_new] = numbers.try_emplace(hyper.dump(), parted.size());
        if (is_new) parted.hyper.push_back(std::move(hyper));
        sizes.resize(parted.size());
        parted.place.emplace(name, OptimizerGroups::Place{at->second, sizes[at->second]++});
      }
  };
  add(false);
  if (apart) add(true);
  groups = std::move(parted);
}

// A buffer has no optimizer's state.
bool IsBuffer(const TrainingParameter& parameter) {
  const CanonicalModule* module = ModuleOfParameter(parameter.spec.name);
  return module && module->keeps_type;
}

}  // namespace

Status CorePlan::Choose(const CoreForm& form) {
  CAIRN_RETURN_IF_ERROR(Validate(topology));
  CAIRN_ASSIGN_OR_RETURN(tensors, ChooseTrainingTensors(source, options.dtype));
  CAIRN_ASSIGN_OR_RETURN(shape, MegatronShapeOf(source.manifest().model, tensors));
  CAIRN_RETURN_IF_ERROR(CheckMegatronModel(source.manifest().model, tensors, shape));
  shape.dialect.local_spec = options.local_spec;
  shape.dialect.distributed = form.distributed;
  shape.dialect.latent = shape.key_value_rank > 0;
  CAIRN_RETURN_IF_ERROR(ChooseOptimizer(form));
  CAIRN_ASSIGN_OR_RETURN(layers, LayersPerChunk(static_cast<int>(shape.layers), topology));
  CAIRN_RETURN_IF_ERROR(CheckCoreLayers(layers, topology.virtual_stages));
  builder.target.tensors = tensors.tensors;
  return OkStatus();
}

Status CorePlan::ChooseOptimizer(const CoreForm& form) {
  places = topology.zero == 1 ? form.sharded : form.plain;
  CAIRN_RETURN_IF_ERROR(FitStates(places, options.allow_optimizer, tensors, state));
  if (topology.zero > 1)
    return InvalidArgument("Megatron-LM has no ZeRO {}; choose --zero 1, its distributed optimizer, or 0",
                           topology.zero);
  if (!tensors.optimizer) return OkStatus();
  CAIRN_RETURN_IF_ERROR(ChooseCoreGroups(tensors, options.allow_optimizer, state));
  if (shape.experts > 0) {
    if (topology.ep == 1 && topology.size(Axis::kEtp) != topology.tp)
      return NotSupported(
          "EP=1 with ETP={} and TP={}: Megatron's optimizer would reduce ranks that hold different parts of "
          "an expert; choose an ETP of {}, or another EP",
          topology.size(Axis::kEtp), topology.tp, topology.tp);
    PartExperts(tensors, topology.ep > 1, state.groups);
  }
  const bool fp32 = form.distributed && std::ranges::all_of(tensors.parameters, [&](const auto& parameter) {
                      return tensors.tensors[parameter.weight].entry.dtype == Dtype::kF32;
                    });
  optimizer = topology.zero == 1 ? CoreOptimizer::kDistributed
              : fp32             ? CoreOptimizer::kFp32
                                 : CoreOptimizer::kFloat16;
  for (const TrainingParameter& parameter : tensors.parameters) {
    if (IsBuffer(parameter)) continue;
    if (!parameter.has_state())
      return NotSupported(
          "{} has no states (is it frozen?); Megatron's optimizers need those of every parameter; the "
          "formats dcp, universal and native do not",
          parameter.spec.name);
    if (!parameter.master && optimizer != CoreOptimizer::kFp32)
      return NotSupported("{} has no fp32 master, which Megatron's optimizer needs; choose --dtype bf16{}",
                          parameter.spec.name, fp32 ? " or --zero 0" : "");
  }
  return OkStatus();
}

nlohmann::json CorePlan::Arguments() const {
  nlohmann::json arguments = CoreArguments(source.manifest(), shape, topology, layers, state);
  arguments["use_distributed_optimizer"] = distributed();
  arguments["transformer_impl"] = options.local_spec ? "local" : "transformer_engine";
  return arguments;
}

nlohmann::json CoreArguments(const Manifest& manifest, const MegatronShape& shape, const Topology& topology,
                             const std::vector<int>& layers, const TrainingState& state) {
  nlohmann::json arguments = MegatronArguments(manifest.model, shape, topology);
  arguments["consumed_train_samples"] = state.consumed_samples;
  arguments["consumed_valid_samples"] = 0;
  arguments["skipped_train_samples"] = 0;
  arguments["iteration"] = state.iteration;
  if (topology.virtual_stages > 1)
    arguments["virtual_pipeline_model_parallel_size"] = topology.virtual_stages;
  if (!AllEqual(layers)) {
    arguments["decoder_first_pipeline_num_layers"] = layers.front();
    arguments["decoder_last_pipeline_num_layers"] = layers.back();
  }
  return arguments;
}

nlohmann::json CoreSchedule(const TrainingState& state) {
  if (state.schedule.contains("num_steps")) return state.schedule;
  const nlohmann::json group =
      state.groups.size() == 0 ? WithAdamWDefaults(nlohmann::json::object()) : ParamGroup(state, 0);
  const int64_t samples = std::max<int64_t>(1, state.consumed_samples);
  return {{"max_lr", group.value("lr", nlohmann::json())},
          {"min_lr", 0.0},
          {"lr_warmup_steps", 0},
          {"num_steps", state.scheduled_samples},
          {"lr_decay_style", "constant"},
          {"lr_decay_steps", samples},
          {"start_wd", group.value("weight_decay", 0.0)},
          {"end_wd", group.value("weight_decay", 0.0)},
          {"wd_incr_style", "constant"},
          {"wd_incr_steps", samples}};
}

nlohmann::json CoreGroupOwn(const TrainingState& state, size_t group) {
  nlohmann::json own = {{"bias_correction", true}, {"step", state.optimizer_step}};
  const nlohmann::json schedule = CoreSchedule(state);
  const nlohmann::json megatron = {{"wd_mult", group == 0 ? 1.0 : 0.0},
                                   {"lr_mult", 1.0},
                                   {"is_expert_parallel", false},
                                   {"is_decoupled_lr", false},
                                   // 0.19 finds its group by these, too.
                                   {"max_lr", schedule.value("max_lr", nlohmann::json())},
                                   {"min_lr", schedule.value("min_lr", nlohmann::json())}};
  for (const auto& [key, value] : megatron.items()) own[key] = state.groups.hyper[group].value(key, value);
  return own;
}

std::vector<std::vector<size_t>> CorePlan::Optimizers() const {
  std::map<std::pair<bool, bool>, size_t> numbers;
  std::vector<std::vector<size_t>> optimizers;
  for (size_t g = 0; g < state.groups.size(); ++g) {
    const nlohmann::json& group = state.groups.hyper[g];
    const bool experts = group.value("is_expert_parallel", nlohmann::json()) == true;
    const size_t number =
        numbers.try_emplace({experts, group.contains("momentum")}, numbers.size()).first->second;
    optimizers.resize(numbers.size());
    optimizers[number].push_back(g);
  }
  return optimizers;
}

nlohmann::json CorePlan::GroupOf(size_t group) const {
  nlohmann::json all = ParamGroup(state, group);
  all.update(CoreGroupOwn(state, group));
  return all;
}

void CorePlan::EmitProgress(PickleEmitter& pickle, const nlohmann::json& arguments) const {
  pickle.Text("args");
  pickle.Arguments(arguments, tensors.weight_type());
  pickle.Entry("checkpoint_version", 3.0);
  pickle.Entry("iteration", state.iteration);
}

// Megatron's loader needs a scale. If no file states one, the scale is Megatron's initial one.
void CorePlan::EmitGradScaler(uint32_t zip) {
  if (tensors.weight_type() != Dtype::kF16) return;
  const bool known = state.dynamic_loss_scale && state.loss_scale > 0;
  PickleEmitter& p = builder.pickle(zip);
  p.Text("grad_scaler");
  p.BeginDict();
  p.Text("scale");
  builder.EmitScalar(zip, static_cast<float>(known ? state.loss_scale : kInitialLossScale), {1});
  p.Entry("growth_tracker", known ? state.loss_scale_good_steps : 0);
  p.Entry("hysteresis_tracker", known ? state.loss_scale_hysteresis.value_or(kHysteresis) : kHysteresis);
  p.EndDict();
}

void CorePlan::EmitSchedule(PickleEmitter& pickle) const {
  pickle.Entry("opt_param_scheduler", CoreSchedule(state));
  pickle.Entry("num_floating_point_operations_so_far", 0);
}

void CorePlan::AddNotes() {
  if (!tensors.optimizer) {
    state.notes.push_back("the optimizer's state is missing; start with --finetune or --no-load-optim");
    return;
  }
  if (distributed())
    state.notes.push_back(
        "the optimizer's state is for --use-distributed-optimizer; --zero 0 writes that of the other");
  else
    state.notes.push_back(fmt::format(
        "the optimizer's state is not for --use-distributed-optimizer, which takes that of "
        "--zero 1; its step "
        "is where {} looks",
        options.local_spec ? "torch's AdamW"
                           : "Transformer Engine's Adam (--transformer-impl local: torch's AdamW)"));
  const nlohmann::json group = CoreGroupOwn(state, 0);
  if (!state.schedule.contains("num_steps"))
    state.notes.push_back(
        fmt::format("no schedule of the learning rate is known; start with --override-opt-param-scheduler; "
                    "Megatron-Core from 0.19 on takes the state at --lr {} --min-lr {} alone",
                    group["max_lr"].dump(), group["min_lr"].dump()));
  if (state.param_groups.empty()) state.notes.push_back(AdamWDefaultsInWords());
  if (tensors.weight_type() == Dtype::kF16 && !(state.dynamic_loss_scale && state.loss_scale > 0))
    state.notes.push_back("no file states the loss scale; Megatron's first one, 2^32, was written");
}

}  // namespace cairn
