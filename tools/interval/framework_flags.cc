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

// One in this many saves goes to the run, too.
int64_t Every(const SavingPlan& plan) {
  return plan.Local() ? plan.Of(TierKind::kRun)->interval / plan.Local()->interval : 1;
}

// Arguments of Cairn's modules for PyTorch; Megatron has an interval of its own in place of `every`.
std::string LocalArguments(const SavingPlan& plan, bool every = true) {
  return fmt::format("local=\"{}\"{}{}", PlaceOf(*plan.Local()),
                     every ? fmt::format(", every={}", Every(plan)) : "",
                     plan.parity.parity > 0 ? fmt::format(", redundancy=\"{}\"", plan.parity.Text(',')) : "");
}

std::string CairnTorch(const SavingPlan& plan, const KeepRules& keep) {
  const PlannedTier* local = plan.Local();
  const std::string arguments = local ? LocalArguments(plan) + ", " : "";
  return fmt::format("step % {} == 0: cairn.torch.async_save(state, \"run\", step=step, {}keep_last={})",
                     local ? local->interval : plan.Of(TierKind::kRun)->interval, arguments, keep.last);
}

std::string MegatronLm(const SavingPlan& plan) {
  const std::string flags = fmt::format("--save-interval {} --async-save", plan.Of(TierKind::kRun)->interval);
  if (!plan.Local()) return flags;
  return fmt::format("cairn.enable(\"megatron\", {}); {} --non-persistent-save-interval {}",
                     LocalArguments(plan, false), flags, plan.Local()->interval);
}

}  // namespace

std::vector<FrameworkFlags> FlagsOf(const SavingPlan& plan, const SavingPlan& run_only,
                                    const KeepRules& keep) {
  const int64_t steps = run_only.Of(TierKind::kRun)->interval;
  const bool local = plan.Local() != nullptr;
  const bool most_local = Every(plan) > 1;  // the modules of frameworks take no `every` below 2
  const int64_t saves = most_local ? plan.Local()->interval : steps;
  const auto with_level = [&](std::string_view before, std::string_view after) {
    return most_local ? fmt::format("{}{}{}", before, LocalArguments(plan), after) : "";
  };
  return {
      {"cairn train", CairnTrain(plan, keep), local},
      {"cairn.torch", CairnTorch(plan, keep), local},
      {"Megatron-LM", MegatronLm(plan), local},
      {"DeepSpeed",
       fmt::format("{}if engine.global_steps % {} == 0: engine.save_checkpoint(\"run\")",
                   with_level("cairn.enable(\"deepspeed\", engine, ", "); "), saves),
       most_local},
      {"torchtitan",
       fmt::format("cairn.titan.CheckpointManager.Config(enable=True, interval={}, async_mode=\"async\", "
                   "keep_latest_k={}{})",
                   saves, keep.last, with_level(", ", "")),
       most_local},
      {"Hugging Face",
       fmt::format("{}save_strategy=\"steps\", save_steps={}, save_total_limit={}",
                   with_level("cairn.enable(\"hf\", ", "); "), saves, keep.last),
       most_local},
      {"NeMo", fmt::format("ModelCheckpoint(every_n_train_steps={}, save_top_k={})", steps, keep.last)},
      {"Lightning",
       fmt::format("ModelCheckpoint(every_n_train_steps={}, save_top_k={}, monitor=\"step\", mode=\"max\")",
                   steps, keep.last)},
  };
}

}  // namespace cairn
