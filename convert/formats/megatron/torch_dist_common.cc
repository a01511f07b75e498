#include <algorithm>

#include "convert/formats/megatron/megatron_core.h"

namespace cairn {
namespace {

constexpr const char* kSharding = "fully_reshardable";  // of the distributed optimizer

nlohmann::json Arguments(const CorePlan& plan) {
  nlohmann::json arguments = plan.Arguments();
  arguments["ckpt_format"] = "torch_dist";
  arguments["ckpt_fully_parallel_save"] = true;
  arguments["use_dist_ckpt"] = true;
  arguments["dist_ckpt_optim_fully_reshardable"] = plan.distributed();
  arguments["no_save_rng"] = true;  // its loader then asks for none
  arguments["no_save_optim"] = plan.optimizer == CoreOptimizer::kNone;
  return arguments;
}

// torch's AdamW looks for its step in the state; Transformer Engine's Adam fails if it is present, and Muon
// has none.
void EmitState(CorePlan& plan, uint32_t zip, const nlohmann::json& group) {
  PickleEmitter& p = plan.builder.pickle(zip);
  p.Text("state");
  p.BeginDict();
  if (plan.options.local_spec && plan.state.adam && !group.contains("momentum")) {
    p.Text("common_step");
    plan.builder.EmitScalar(zip, static_cast<float>(plan.state.optimizer_step));
  }
  p.EndDict();
}

void EmitGroups(const CorePlan& plan, const std::vector<size_t>& groups, PickleEmitter& p) {
  p.Text("param_groups");
  p.BeginList();
  for (const size_t g : groups) {
    nlohmann::json group = plan.GroupOf(g);
    if (!group.contains("default_config")) group["default_config"] = true;
    p.BeginDict();
    EmitHyperParameters(p, group);
    p.EndDict();
  }
  p.EndList();
}

void EmitOptimizer(CorePlan& plan, uint32_t zip, const std::vector<size_t>& groups) {
  PickleEmitter& p = plan.builder.pickle(zip);
  const bool wrapped = plan.optimizer != CoreOptimizer::kFp32;
  p.BeginDict();
  if (wrapped) {
    p.Text("optimizer");
    p.BeginDict();
  }
  if (!plan.distributed()) EmitState(plan, zip, plan.state.groups.hyper[groups[0]]);
  EmitGroups(plan, groups, p);
  if (wrapped) p.EndDict();
  plan.EmitGradScaler(zip);
  if (plan.distributed()) p.Entry("param_state_sharding_type", kSharding);
  p.EndDict();
}

// Several optimizers are a dict of all.
void EmitOptimizers(CorePlan& plan, uint32_t zip) {
  const std::vector<std::vector<size_t>> optimizers = plan.Optimizers();
  PickleEmitter& p = plan.builder.pickle(zip);
  p.Text("optimizer");
  if (optimizers.size() == 1) return EmitOptimizer(plan, zip, optimizers[0]);
  p.BeginDict();
  for (size_t i = 0; i < optimizers.size(); ++i) {
    p.Int(static_cast<int64_t>(i));
    EmitOptimizer(plan, zip, optimizers[i]);
  }
  p.EndDict();
}

// It makes the loader ask for names and shapes as they were saved.
nlohmann::json ContentMetadata(const CorePlan& plan) {
  nlohmann::json content = {{"singleton_local_shards", false}, {"chained_optim_avoid_prefix", true}};
  if (plan.distributed()) {
    content["distrib_optim_sharding_type"] = kSharding;
    content["distrib_optim_fully_reshardable_mem_efficient"] = false;
  }
  return content;
}

}  // namespace

void EmitTorchDistCommon(CorePlan& plan, uint32_t zip) {
  PickleEmitter& p = plan.builder.pickle(zip);
  p.BeginDict();
  plan.EmitProgress(p, Arguments(plan));
  if (plan.optimizer != CoreOptimizer::kNone) EmitOptimizers(plan, zip);
  plan.EmitSchedule(p);
  p.Entry("content_metadata", ContentMetadata(plan));
  p.EndDict();
}

}  // namespace cairn
