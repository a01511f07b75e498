#include "convert/formats/megatron/torch_dist_common.h"

#include "convert/formats/megatron/argparse_namespace.h"

namespace cairn {
namespace {

constexpr const char* kSharding = "fully_reshardable";  // of the distributed optimizer

nlohmann::json Arguments(const TorchDistCommon& common) {
  nlohmann::json arguments =
      CoreArguments(common.manifest, common.shape, common.topology, common.layers, common.state);
  const bool distributed = common.optimizer == CoreOptimizer::kDistributed;
  arguments["ckpt_format"] = "torch_dist";
  arguments["ckpt_fully_parallel_save"] = true;
  arguments["use_dist_ckpt"] = true;
  arguments["use_distributed_optimizer"] = distributed;
  arguments["dist_ckpt_optim_fully_reshardable"] = distributed;
  arguments["transformer_impl"] = common.local_spec ? "local" : "transformer_engine";
  arguments["no_save_rng"] = true;  // its loader then asks for none
  arguments["no_save_optim"] = common.optimizer == CoreOptimizer::kNone;
  return arguments;
}

// torch's AdamW looks for its step in the state; Transformer Engine's Adam fails if it is there.
void EmitState(const TorchDistCommon& common, uint32_t zip, TargetBuilder& builder) {
  PickleEmitter& p = builder.pickle(zip);
  p.Text("state");
  p.BeginDict();
  if (common.local_spec) {
    p.Text("common_step");
    builder.EmitScalar(zip, static_cast<float>(common.state.optimizer_step));
  }
  p.EndDict();
}

void EmitGroups(const TorchDistCommon& common, PickleEmitter& p) {
  p.Text("param_groups");
  p.BeginList();
  for (size_t g = 0; g < common.state.groups.size(); ++g) {
    nlohmann::json group = ParamGroup(common.state, g);
    group.update(CoreGroupOwn(common.state, g));
    if (!group.contains("default_config")) group["default_config"] = true;
    p.BeginDict();
    EmitHyperParameters(p, group);
    p.EndDict();
  }
  p.EndList();
}

void EmitOptimizer(const TorchDistCommon& common, uint32_t zip, TargetBuilder& builder) {
  PickleEmitter& p = builder.pickle(zip);
  const bool wrapped = common.optimizer != CoreOptimizer::kFp32;
  const bool distributed = common.optimizer == CoreOptimizer::kDistributed;
  p.Text("optimizer");
  p.BeginDict();
  if (wrapped) {
    p.Text("optimizer");
    p.BeginDict();
  }
  if (!distributed) EmitState(common, zip, builder);
  EmitGroups(common, p);
  if (wrapped) p.EndDict();
  if (common.weights == Dtype::kF16) EmitCoreGradScaler(zip, common.state, builder);
  if (distributed) p.Entry("param_state_sharding_type", kSharding);
  p.EndDict();
}

// It makes the loader ask for names and shapes as they were saved.
nlohmann::json ContentMetadata(const TorchDistCommon& common) {
  nlohmann::json content = {{"singleton_local_shards", false}, {"chained_optim_avoid_prefix", true}};
  if (common.optimizer == CoreOptimizer::kDistributed) {
    content["distrib_optim_sharding_type"] = kSharding;
    content["distrib_optim_fully_reshardable_mem_efficient"] = false;
  }
  return content;
}

}  // namespace

void EmitTorchDistCommon(const TorchDistCommon& common, uint32_t zip, TargetBuilder& builder) {
  PickleEmitter& p = builder.pickle(zip);
  p.BeginDict();
  p.Text("args");
  EmitNamespace(p, Arguments(common), common.weights);
  p.Entry("checkpoint_version", 3.0);
  p.Entry("iteration", common.state.iteration);
  if (common.optimizer != CoreOptimizer::kNone) EmitOptimizer(common, zip, builder);
  p.Entry("opt_param_scheduler", CoreSchedule(common.state));
  p.Entry("num_floating_point_operations_so_far", 0);
  p.Entry("content_metadata", ContentMetadata(common));
  p.EndDict();
}

}  // namespace cairn
