// The two ways in which a transfer writes (transfer.h), and what they share.
#pragma once

#include "convert/transfer/transfer.h"

namespace cairn {

// The stream of the transfer's tensors. `advance` gets the bytes of each block.
TensorStream StreamOf(const Transfer& transfer, const std::function<void(uint64_t)>& advance);
// The counts and sums of a stream that has ended.
TransferResult OutcomeOf(const Transfer& transfer, const TensorStream& stream);

Result<TransferResult> WriteStep(FileSystem& fs, const Transfer& transfer, const StepTarget& target,
                                 const std::string& run_dir);
Result<TransferResult> WriteFiles(FileSystem& fs, const Transfer& transfer, const FilesTarget& target,
                                  const std::string& path);

// Buffers for writing files in a window of memory.
WriteRingOptions RingOfFiles(const WriterOptions& writer);
// Memory for large reads that prove a step.
uint64_t ProofMemory(uint64_t max_memory);

}  // namespace cairn
