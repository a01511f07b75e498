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

// torch's AdamW looks for its step in the state; Transformer Engine's Adam fails if it is present.
void EmitState(CorePlan& plan, uint32_t zip) {
  PickleEmitter& p = plan.builder.pickle(zip);
  p.Text("state");
  p.BeginDict();
  if (plan.options.local_spec) {
    p.Text("common_step");
    plan.builder.EmitScalar(zip, static_cast<float>(plan.state.optimizer_step));
  }
  p.EndDict();
}

bool IsOfExperts(const nlohmann::json& group) {
  return group.value("is_expert_parallel", nlohmann::json()) == true;
}

void EmitGroups(const CorePlan& plan, bool of_experts, PickleEmitter& p) {
  p.Text("param_groups");
  p.BeginList();
  for (size_t g = 0; g < plan.state.groups.size(); ++g) {
    nlohmann::json group = plan.GroupOf(g);
    if (IsOfExperts(group) != of_experts) continue;
    if (!group.contains("default_config")) group["default_config"] = true;
    p.BeginDict();
    EmitHyperParameters(p, group);
    p.EndDict();
  }
  p.EndList();
}

// The optimizer of the experts, or of the others.
void EmitOptimizer(CorePlan& plan, uint32_t zip, bool of_experts) {
  PickleEmitter& p = plan.builder.pickle(zip);
  const bool wrapped = plan.optimizer != CoreOptimizer::kFp32;
  p.BeginDict();
  if (wrapped) {
    p.Text("optimizer");
    p.BeginDict();
  }
  if (!plan.distributed()) EmitState(plan, zip);
  EmitGroups(plan, of_experts, p);
  if (wrapped) p.EndDict();
  plan.EmitGradScaler(zip);
  if (plan.distributed()) p.Entry("param_state_sharding_type", kSharding);
  p.EndDict();
}

// Two optimizers are a dict of both.
void EmitOptimizers(CorePlan& plan, uint32_t zip) {
  PickleEmitter& p = plan.builder.pickle(zip);
  p.Text("optimizer");
  if (!std::ranges::any_of(plan.state.groups.hyper, IsOfExperts)) return EmitOptimizer(plan, zip, false);
  p.BeginDict();
  for (const bool of_experts : {false, true}) {
    p.Int(of_experts ? 1 : 0);
    EmitOptimizer(plan, zip, of_experts);
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
