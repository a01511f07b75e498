// Copies a shard from one directory to another, verifying it on the way.
#pragma once

#include <string>

#include "ckpt/step/shard_plan.h"

namespace cairn {

// Creates and syncs `to_dir`/NAME. Errors: Corrupt if the source does not match `receipt`, naming tensor and
// offset; those of the disk. The copy is then condemned: remove the whole partial directory.
Status CopyShard(FileSystem& fs, const std::string& from_dir, const std::string& to_dir,
                 const ShardReceipt& receipt, const StepIdentity& identity, Direct direct = Direct::kAuto);

}  // namespace cairn
