#include "tools/interval/framework_flags.h"

#include <fmt/format.h>

namespace cairn {
namespace {

// Where a node keeps its steps.
const char* PlaceOf(const PlannedTier& local) {
  return local.cost.kind == TierKind::kMemory ? "/dev/shm/cairn" : "/local/cairn";
}

std::string CairnTrain(const SavingPlan& plan, const KeepRules& keep) {
  std::string flags = fmt::format("--save-interval {} --keep-last {} --keep-every {}",
                                  plan.Of(TierKind::kRun)->interval, keep.last, keep.every);
  const PlannedTier* local = plan.Local();
  if (local == nullptr) return flags;
  flags += fmt::format(" --save-local {} --save-local-interval {} --keep-last-local {}", PlaceOf(*local),
                       local->interval, keep.last_local);
  if (plan.parity.parity > 0) flags += fmt::format(" --redundancy {}", plan.parity.Text(','));
  return flags;
}

std::string CairnTorch(const SavingPlan& plan, const KeepRules& keep) {
  const int64_t interval = plan.Of(TierKind::kRun)->interval;
  const PlannedTier* local = plan.Local();
  if (local == nullptr)
    return fmt::format("step % {} == 0: cairn.torch.async_save(state, \"run\", step=step, keep_last={})",
                       interval, keep.last);
  const std::string redundancy =
      plan.parity.parity > 0 ? fmt::format(", redundancy=\"{}\"", plan.parity.Text(',')) : "";
  return fmt::format(
      "step % {} == 0: cairn.torch.async_save(state, \"run\", step=step, local=\"{}\", every={}{}, "
      "keep_last={})",
      local->interval, PlaceOf(*local), interval / local->interval, redundancy, keep.last);
}

std::string MegatronLm(const SavingPlan& plan) {
  std::string flags = fmt::format("--save-interval {} --async-save", plan.Of(TierKind::kRun)->interval);
  const PlannedTier* local = plan.Local();
  if (local == nullptr) return flags;
  flags += fmt::format(
      " --non-persistent-save-interval {} --non-persistent-ckpt-type local --non-persistent-local-ckpt-dir "
      "{}",
      local->interval, PlaceOf(*local));
  return plan.parity.parity > 0 ? flags + " --replication --replication-factor 2" : flags;
}

}  // namespace

std::vector<FrameworkFlags> FlagsOf(const SavingPlan& plan, const SavingPlan& run_only,
                                    const KeepRules& keep) {
  const int64_t steps = run_only.Of(TierKind::kRun)->interval;
  const bool local = plan.Local() != nullptr;
  return {
      {"cairn train", CairnTrain(plan, keep), local},
      {"cairn.torch", CairnTorch(plan, keep), local},
      {"Megatron-LM", MegatronLm(plan), local},
      {"NeMo", fmt::format("ModelCheckpoint(every_n_train_steps={}, save_top_k={})", steps, keep.last)},
      {"DeepSpeed", fmt::format("if engine.global_steps % {} == 0: engine.save_checkpoint(\"run\")", steps)},
      {"torchtitan", fmt::format("--checkpoint.enable --checkpoint.interval {} --checkpoint.async_mode "
                                 "async_with_pinned_mem --checkpoint.keep_latest_k {}",
                                 steps, keep.last)},
      {"Hugging Face",
       fmt::format("save_strategy=\"steps\", save_steps={}, save_total_limit={}", steps, keep.last)},
      {"Lightning",
       fmt::format("ModelCheckpoint(every_n_train_steps={}, save_top_k={}, monitor=\"step\", mode=\"max\")",
                   steps, keep.last)},
  };
}

}  // namespace cairn
