// How often a training saves to each tier (the node's memory, its disk, the run directory, an archive): the
// intervals that lose the least time to saves, to work that is done again, and to restarts.
//
// One tier is the model of Young 1974 ("A first order approximation to the optimum checkpoint interval") in
// Daly's exact form (2006, "A higher order estimate of the optimum checkpoint interval for restart dumps"):
// failures are a Poisson process, also during restarts. A save that continues behind the training stops it
// for a part of its time, and counts once it is whole. Several tiers are nested as in SCR (Moody et al. 2010)
// and in Di et al. 2014 ("Optimization of multi-level checkpoint model with uncertain execution scales"): to
// a tier, the tiers before it are a training that is slower.
//
//   s' = (exp(l (U s + stall)) - 1) exp(l (save - stall + resume)) / (l U)
//
// with U seconds of training between saves of the tier, l its failures per second, and s the seconds that one
// second of training takes in the tiers before it: 1 for the first.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {

struct SaveTier {
  double stall_seconds = 0;        // that the training loses to one save, beside those of the tiers before
  double save_seconds = 0;         // from its begin until a restart can use it; at least the stall
  double resume_seconds = 0;       // from a failure until the training has loaded such a save
  double failures_per_second = 0;  // those that the tiers before do not survive, and this one does
};

// Shares of the time.
struct LostTime {
  double total = 0;  // 1: the training never ends
  double saves = 0, restarts = 0;
  double rework() const { return total - saves - restarts; }
};

// The loss of a training that saves to tier i every `intervals[i]` steps.
LostTime ExpectedLoss(std::span<const SaveTier> tiers, std::span<const int64_t> intervals,
                      double step_seconds);

// Steps between saves of each tier that lose the least time. Each is a multiple of the one before, because a
// save goes through all tiers before its own, and leaves a save the time to end before the next one.
std::vector<int64_t> BestIntervals(std::span<const SaveTier> tiers, double step_seconds);

// The same for one tier, if a save stops the training until it is whole, with `failure_seconds` between
// failures of the whole job.
int64_t SaveInterval(double save_seconds, double failure_seconds, double step_seconds);

// Hours between failures of one node: large trainings of 48 and of 2000 nodes reported 5000 to 6000.
inline constexpr double kNodeMtbfHours = 5000;

// The share of the time that a save takes behind the training by which it slows the training, if not known.
inline constexpr double kBackgroundCost = 0.01;

// Shares of the failures by what they take, if it is not known: a process, a node, several nodes. 85 % lost
// at most one node on three clusters (Moody et al. 2010); of the interruptions of Llama 3's training 15 %
// were those of software, which leaves the node (Dubey et al. 2024, table 5).
inline constexpr std::array<double, 3> kFailureShares = {0.15, 0.70, 0.15};

// The share that steps on the nodes do not survive; parity brings back those of a lost node.
inline double BeyondLocal(bool parity) { return kFailureShares[2] + (parity ? 0 : kFailureShares[1]); }

}  // namespace cairn
