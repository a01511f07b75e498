// Writes a shard from memory that holds it exactly as its file will be.
//
// A snapshot copies each piece to its place in the image (ShardPlan::OffsetOf), and the file is written from
// the image in large direct writes, without another copy. Digests are taken while writes are in flight,
// unless the code that filled the image took them. Non-finite values are counted in both cases.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "ckpt/io/file_system.h"
#include "ckpt/step/shard_plan.h"

namespace cairn {

struct ImageWriteOptions {
  Direct direct = Direct::kAuto;
  IoQueueOptions queue;
  uint64_t write_bytes = 8 << 20;  // one write; a multiple of kPageBytes
  bool take_digests = true;        // false: the plan has those of all pieces once `wait_for` returned
  std::string
      mapped;  // the file that the image is a mapping of: it gets another name, and nothing is written
  // Waits until the pieces' bytes before this offset of the image are complete; an error ends the write.
  // Empty: they are all complete.
  std::function<Status(uint64_t end)> wait_for;
};

// Creates and syncs `directory`/plan.name(). The bytes between the pieces are filled in here.
// Requires image.size() == plan.file_bytes() and an image aligned to kPageBytes. Errors: those of the disk;
// the file is then condemned: remove the whole partial directory.
Result<ShardReceipt> WriteShardImage(FileSystem& fs, const std::string& directory, ShardPlan& plan,
                                     std::span<std::byte> image, const ImageWriteOptions& options = {});

}  // namespace cairn
