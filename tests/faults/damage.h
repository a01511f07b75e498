// Damage to a checkpoint at rest; shared by the goal and by the mutant that it must catch.
#pragma once

#include "tests/faults/goal.h"

namespace cairn {

// Every `stride`-th of: each bit of each file flipped, each file cut at each byte, shards that are swapped,
// duplicated, stale or foreign; and whole checkpoints, which must raise no alarm.
void TryDamage(const GoalOptions& options, uint64_t stride, Tally& tally);

}  // namespace cairn
