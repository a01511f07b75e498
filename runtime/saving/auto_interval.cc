#include "runtime/saving/auto_interval.h"

#include <set>

#include "ckpt/base/this_process.h"
#include "ckpt/job/job_ranks.h"
#include "ckpt/model/save_interval.h"
#include "runtime/control/console.h"

namespace cairn {

void AutoInterval::Step(Clock::time_point now) {
  if (++steps_ == 1) first_ = now;
  if (steps_ == kEvery) step_seconds_ = std::chrono::duration<double>(now - first_).count() / (kEvery - 1);
}

Result<int64_t> AutoInterval::Choose(ControlPlane& control, double mtbf_hours, double beyond_local) const {
  const auto hosts = control.GatherToRoot(HostName(), "hosts");
  const auto choose = [&]() -> Result<std::string> {
    CAIRN_RETURN_IF_ERROR(hosts.status());
    const auto nodes = static_cast<double>(std::set(hosts->begin(), hosts->end()).size());
    const double failure_hours = mtbf_hours / nodes / beyond_local, save_seconds = save_seconds_ / saves_;
    const double stall_seconds = stall_seconds_ / saves_;
    const SaveTier tier{.stall_seconds = stall_seconds + kBackgroundCost * (save_seconds - stall_seconds),
                        .save_seconds = save_seconds,
                        .failures_per_second = 1 / (failure_hours * 3600)};
    const int64_t interval = BestIntervals({&tier, 1}, step_seconds_).front();
    Print(fmt::format(
        " saves every {} iterations from here on (a save takes {:.3f} s and stops the training for "
        "{:.3f} s, an iteration {:.4f} s; failures{} every {:.4g} h on {:.0f} node{})\n",
        interval, save_seconds, stall_seconds, step_seconds_,
        beyond_local < 1 ? " that local steps do not survive" : "", failure_hours, nodes,
        nodes > 1 ? "s" : ""));
    return std::to_string(interval);
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string chosen, FromRoot(control, "save interval", choose));
  return std::atoll(chosen.c_str());
}

}  // namespace cairn
