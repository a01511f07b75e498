// --save-interval auto: two saves are measured, then Young's and Daly's formula gives the interval, as in
// `cairn plan` (ckpt/model/save_interval.h).
//
// The saves are due 10 and 20 iterations after the start, later ones if one of them failed; the iterations
// before the first save give the time of one iteration. These iterations depend only on the first one, so
// ranks agree on them. Only rank 0's clock counts.
#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/control/control_plane.h"

namespace cairn {

class AutoInterval {
 public:
  static constexpr int64_t kEvery = 10;  // iterations between measured saves
  static constexpr int kSaves = 2;

  using Clock = std::chrono::steady_clock;
  // Call after every iteration.
  void Step(Clock::time_point now = Clock::now());
  // Call for each save that has become durable after `seconds`, for `stall` of which the training waited.
  void Saved(double seconds, double stall) {
    ++saves_;
    save_seconds_ += seconds;
    stall_seconds_ += stall;
  }

  // Whether to save after the iteration of the last Step.
  bool IsDue() const { return steps_ > 0 && steps_ % kEvery == 0; }
  // Whether to decide now, once all saves begun so far have ended.
  bool MayDecide() const { return IsDue() && steps_ > kSaves * kEvery; }
  bool Decides() const { return MayDecide() && saves_ >= kSaves; }

  // Collective, if it Decides(): the steps between saves, from rank 0's figures. `mtbf_hours`: of one node.
  // `beyond_local`: the share of the failures that node-local steps do not survive (BeyondLocal), or 1.
  Result<int64_t> Choose(ControlPlane& control, double mtbf_hours, double beyond_local) const;

 private:
  int64_t steps_ = 0;
  Clock::time_point first_;
  double step_seconds_ = 0;
  int saves_ = 0;
  double save_seconds_ = 0, stall_seconds_ = 0;  // their sums
};

}  // namespace cairn
