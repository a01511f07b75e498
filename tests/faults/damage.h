// Damage to a checkpoint at rest; shared by the goal and by the mutant that it must catch.
#pragma once

#include "tests/faults/goal.h"

namespace cairn {

// Every `stride`-th of: each bit of each file flipped, each file cut at each byte. All shards that are
// swapped, duplicated, stale or foreign. Intact checkpoints, which must raise no alarm, also fewer by
// `stride`.
void TryDamage(const GoalOptions& options, uint64_t stride, Tally& tally);

}  // namespace cairn
