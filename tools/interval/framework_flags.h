// A plan of saves as the flags and arguments of each framework.
#pragma once

#include <string>
#include <vector>

#include "tools/interval/checkpoint_plan.h"

namespace cairn {

struct FrameworkFlags {
  std::string framework;
  std::string flags;
  bool local = false;  // it saves to the nodes, too
};

// `plan`: for frameworks that save to the nodes; `run_only`: for those that save only to the run directory.
std::vector<FrameworkFlags> FlagsOf(const SavingPlan& plan, const SavingPlan& run_only,
                                    const KeepRules& keep);

}  // namespace cairn
