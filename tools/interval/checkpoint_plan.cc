// Each failure restarts from the first tier that survives it. A killed process leaves its node's memory and
// disk; a lost node takes its own, which parity brings back; more nodes of one group than the parity covers
// leave the run directory; and if that is lost, the archive.

#include "tools/interval/checkpoint_plan.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

constexpr double kSame = 1e-3;  // losses that differ by less are equal
constexpr double kDaySeconds = 86400;

double At(const FailureRate& rate, int bound) {
  return bound < 0 ? rate.low : bound > 0 ? rate.high : rate.expected;
}

// The share of the failures of several nodes that parity covers.
double Survived(const SavingFacts& facts, const Parity& parity) {
  double survived = 0;
  for (const int64_t lost : facts.several_lost) survived += 1 - BeyondParity(parity, facts.nodes, lost);
  return facts.several_lost.empty() ? 0 : survived / static_cast<double>(facts.several_lost.size());
}

// Failures per second of each tier. `bound`: -1 for the low rates, 1 for the high ones.
std::vector<SaveTier> TiersAt(const SavingFacts& facts, const std::vector<TierCost>& costs,
                              const Parity& parity, int bound) {
  const auto& of = facts.failures.of;
  const double process = At(of[0], bound), node = At(of[1], bound), several = At(of[2], bound);
  std::vector<SaveTier> tiers;
  double left = process + node + several;
  for (const TierCost& cost : costs) {
    const double behind = std::max(0.0, cost.save - cost.stall);
    SaveTier tier{.stall_seconds = cost.stall + facts.background_cost * behind,
                  .save_seconds = cost.stall + behind,
                  .resume_seconds = facts.restart_seconds + cost.load};
    if (IsLocal(cost.kind)) {
      const double of_a_node = At(facts.failures.total, bound) / static_cast<double>(facts.nodes);
      const double again = LostMeanwhile(parity, of_a_node * tier.resume_seconds);
      tier.failures_per_second = process + node * (1 - again) + several * Survived(facts, parity);
    } else if (cost.kind == TierKind::kRun) {
      tier.failures_per_second = left;
    } else {
      tier.failures_per_second = facts.archive_hours > 0 ? 1 / (facts.archive_hours * 3600) : 0;
    }
    left = std::max(0.0, left - tier.failures_per_second);
    tiers.push_back(tier);
  }
  return tiers;
}

}  // namespace

const PlannedTier* SavingPlan::Local() const {
  return tiers.empty() || !IsLocal(tiers.front().cost.kind) ? nullptr : &tiers.front();
}

const PlannedTier* SavingPlan::Of(TierKind kind) const {
  const auto tier = std::ranges::find(tiers, kind, [](const PlannedTier& t) { return t.cost.kind; });
  return tier == tiers.end() ? nullptr : &*tier;
}

SavingPlan PlanOf(const SavingFacts& facts, std::optional<TierKind> local, const Parity& parity) {
  std::vector<TierCost> costs;
  for (const TierCost& cost : facts.tiers) {
    if (IsLocal(cost.kind) && cost.kind != local) continue;
    costs.push_back(cost);
    if (IsLocal(cost.kind)) costs.back().save = std::max(cost.stall, cost.save) * parity.BytesPerByte();
    // It is copied from the node's files, while the training continues.
    if (cost.kind == TierKind::kRun && local) costs.back().stall = 0;
  }
  std::ranges::sort(costs, {}, &TierCost::kind);
  const std::vector<SaveTier> tiers = TiersAt(facts, costs, parity, 0);
  const std::vector<int64_t> intervals = BestIntervals(tiers, facts.step_seconds);
  const auto lost_at = [&](int bound) {
    return ExpectedLoss(TiersAt(facts, costs, parity, bound), intervals, facts.step_seconds);
  };
  SavingPlan plan{.parity = parity, .lost = lost_at(0), .low = lost_at(-1).total, .high = lost_at(1).total};
  for (size_t i = 0; i < costs.size(); ++i)
    plan.tiers.push_back({.cost = costs[i],
                          .lost_seconds = tiers[i].stall_seconds,
                          .interval = intervals[i],
                          .failures_per_second = tiers[i].failures_per_second});
  const FailureRates& rates = facts.failures;
  const double all = rates.of[0].expected + rates.of[1].expected + rates.of[2].expected;
  if (local && all > 0) plan.beyond_parity = 1 - tiers.front().failures_per_second / all;
  return plan;
}

std::vector<Parity> ParitiesFor(int64_t nodes) {
  std::vector<Parity> parities = {{}};
  const int64_t group = std::min<int64_t>(8, nodes);
  if (group >= 2) parities.push_back({group, 1});
  if (group >= 4) parities.push_back({group, 2});
  return parities;
}

std::vector<SavingPlan> PlansOf(const SavingFacts& facts, const std::vector<Parity>& parities) {
  std::vector<SavingPlan> plans = {PlanOf(facts, std::nullopt, {})};
  for (const TierCost& tier : facts.tiers)
    if (IsLocal(tier.kind))
      for (const Parity& parity : parities) plans.push_back(PlanOf(facts, tier.kind, parity));
  std::ranges::stable_sort(plans, {}, [](const SavingPlan& plan) {
    return std::pair(std::floor(plan.lost.total / kSame), plan.parity.parity);
  });
  return plans;
}

KeepRules KeepRulesOf(const SavingFacts& facts, const SavingPlan& plan, int64_t keep_last,
                      double quota_bytes) {
  KeepRules rules;
  if (keep_last > 0) rules.last = std::max<int64_t>(2, keep_last);
  if (quota_bytes > 0 && facts.step_bytes > 0) {
    const auto fit = static_cast<int64_t>(quota_bytes / facts.step_bytes) - 1;  // one is being written
    rules.quota_is_short = fit < 2;
    rules.last = std::clamp<int64_t>(fit, 2, rules.last);
  }
  const PlannedTier* archive = plan.Of(TierKind::kArchive);
  const PlannedTier* run = plan.Of(TierKind::kRun);
  const int64_t save = run == nullptr ? 1 : run->interval;
  const double day = kDaySeconds / facts.step_seconds / static_cast<double>(save);
  rules.every = archive != nullptr ? archive->interval : save * std::max<int64_t>(1, std::llround(day));
  return rules;
}

}  // namespace cairn
