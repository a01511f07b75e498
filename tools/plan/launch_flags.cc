#include "tools/plan/launch_flags.h"

#include <fmt/format.h>

#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

std::string CountFlag(std::string_view name, int64_t value) { return fmt::format("--{} {}", name, value); }

// If each end holds as many layers as the others or one less, Megatron-LM counts the embedding and the loss
// as layers instead.
void AddMegatronStages(const ModelShape& shape, const RunSetup& setup, std::vector<std::string>& flags) {
  const StageLayers layers = PlannedStages(shape, setup);
  const auto less = [&](double end) { return static_cast<int64_t>(layers.Most() - end); };
  const int64_t first = less(layers.first), last = less(layers.last);
  if (setup.pp > 2 && first <= 1 && last <= 1) {
    if (first == 1) flags.push_back("--account-for-embedding-in-pipeline-split");
    if (last == 1) flags.push_back("--account-for-loss-in-pipeline-split");
    return;
  }
  flags.push_back(CountFlag("decoder-first-pipeline-num-layers", static_cast<int64_t>(layers.first)));
  flags.push_back(CountFlag("decoder-last-pipeline-num-layers", static_cast<int64_t>(layers.last)));
}

// Recomputation and attention. BigScience's program recomputes all or nothing.
void AddActivations(const RunSetup& setup, std::vector<std::string>& flags) {
  const bool full = setup.recompute == Recomputation::kFull;
  if (full && setup.program == Program::kMegatronDeepSpeed)
    flags.insert(flags.end(), {"--checkpoint-activations", "--deepspeed-activation-checkpointing"});
  else if (full)
    flags.push_back("--recompute-granularity full");
  if (setup.program != Program::kMegatronLm) return;
  if (full) flags.insert(flags.end(), {"--recompute-method uniform", "--recompute-num-layers 1"});
  if (setup.recompute == Recomputation::kSelective) flags.push_back("--recompute-granularity selective");
  if (setup.sequence_parallel) flags.push_back("--sequence-parallel");
  if (setup.flash_attention) flags.push_back("--use-flash-attn");
}

}  // namespace

std::vector<std::string> LaunchFlags(const ModelShape& shape, const RunSetup& setup) {
  std::vector<std::string> flags = {CountFlag("tensor-model-parallel-size", setup.tp),
                                    CountFlag("pipeline-model-parallel-size", setup.pp)};
  const bool uneven = setup.first_layers > 0 || setup.last_layers > 0;
  const bool megatron = setup.program == Program::kMegatronLm;
  if (uneven && megatron) AddMegatronStages(shape, setup, flags);
  if (uneven && setup.program == Program::kMegatronDeepSpeed)
    flags.push_back("--pp-partition-method 'type:transformer|embedding'");
  if (setup.virtual_stages > 1 && megatron)
    flags.push_back(CountFlag("num-virtual-stages-per-pipeline-rank", setup.virtual_stages));
  if (setup.virtual_stages > 1 && !megatron)
    flags.push_back(
        CountFlag("num-layers-per-virtual-pipeline-stage", shape.layers / (setup.pp * setup.virtual_stages)));
  flags.push_back(CountFlag("micro-batch-size", setup.micro_batch));
  flags.push_back(CountFlag("global-batch-size", setup.global_batch));
  if (!megatron)
    flags.push_back(CountFlag("zero-stage", setup.zero));
  else if (setup.zero == 1)
    flags.push_back("--use-distributed-optimizer");
  AddActivations(setup, flags);
  return flags;
}

}  // namespace cairn
