#include "convert/stream/step_proof.h"

namespace cairn {

Status ProveStep(CheckpointSource& written, const StepFingerprint& expected, uint64_t block_bytes,
                 const std::function<void(uint64_t)>& advance) {
  StepFingerprint found(written.catalog());
  CAIRN_RETURN_IF_ERROR(
      StreamBlocks(written, AllTensors(written.catalog()), block_bytes, [&](const Block& block) {
        found.Add(block);
        advance(block.bytes.size());
        return OkStatus();
      }));
  const std::string differs = expected.FirstDifference(found);
  if (differs.empty()) return OkStatus();
  return Corrupt("{}: tensor {} read back is not what was written; check the disk and try again",
                 written.directory(), differs);
}

}  // namespace cairn
