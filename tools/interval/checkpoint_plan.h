// How often to save where: tiers, intervals, parity and steps to keep, with the time that is lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/save_interval.h"
#include "tools/interval/failures.h"
#include "tools/interval/parity.h"

namespace cairn {

// In the order of what they survive.
enum class TierKind { kMemory, kDisk, kRun, kArchive };
inline constexpr size_t kTierKinds = 4;
inline constexpr std::array<const char*, kTierKinds> kTierNames = {"memory", "disk", "run", "archive"};
inline bool IsLocal(TierKind kind) { return kind <= TierKind::kDisk; }

// What one save to a tier costs, in seconds.
struct TierCost {
  TierKind kind = TierKind::kRun;
  double stall = 0;  // that the training waits, beside the save to the tier before
  double save = 0;   // until a restart can use it
  double load = 0;   // by a restart
  std::string from;  // where the figures are from
};

// Facts of a training.
struct SavingFacts {
  double step_seconds = 0;
  double step_bytes = 0;  // of a checkpoint; 0: not known
  int64_t nodes = 1;
  double restart_seconds = 0;  // from a failure until the load begins
  double background_cost = 0;  // share of a save's other time that the training loses
  std::vector<TierCost> tiers;
  FailureRates failures;
  std::vector<int64_t> several_lost;  // nodes, by each failure of several; empty: not known, taken as all
  double archive_hours = 0;           // between losses of the run directory
};

struct PlannedTier {
  TierCost cost;
  double lost_seconds = 0;         // that the training loses to a save: the stall, and in the background
  int64_t interval = 0;            // steps
  double failures_per_second = 0;  // that restart from it
};

struct SavingPlan {
  Parity parity;
  double beyond_parity = 1;  // the chance that a failure loses more than node-local steps survive
  std::vector<PlannedTier> tiers;
  LostTime lost;
  double low = 0, high = 0;  // of the total, at the bounds of the rates of failures

  const PlannedTier* Local() const;
  const PlannedTier* Of(TierKind kind) const;
};

// The plan with these tiers of `facts`: at most one of them is local.
SavingPlan PlanOf(const SavingFacts& facts, std::optional<TierKind> local, const Parity& parity);

// The parities that a training on this many nodes may have.
std::vector<Parity> ParitiesFor(int64_t nodes);

// The plans without a local tier, and with each of them and each parity; the one that loses least comes
// first. Of plans that lose the same to a thousandth of the time, the one with less parity comes first.
std::vector<SavingPlan> PlansOf(const SavingFacts& facts, const std::vector<Parity>& parities);

// Steps that the training keeps.
struct KeepRules {
  int64_t last = 3, last_local = 2;
  int64_t every = 0;            // steps, for the archive
  bool quota_is_short = false;  // not even two steps and the one that is written fit
};
// `keep_last`: given, or 0. `quota_bytes`: 0 for no quota.
KeepRules KeepRulesOf(const SavingFacts& facts, const SavingPlan& plan, int64_t keep_last,
                      double quota_bytes);

}  // namespace cairn
