// The size of a native step before it is written: of its files, and of the plan that makes it.
#pragma once

#include <span>

#include "ckpt/model/copy_program.h"
#include "ckpt/model/source.h"
#include "convert/stream/step_plan.h"
#include "convert/stream/tensor_stream.h"

namespace cairn {

// Bytes of a native step's files, estimated without laying them out: data, a page for each piece, and
// metadata. Never below the data.
struct StepSize {
  uint64_t data_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t files = 0;
};
StepSize EstimateStepSize(const StepPlan& plan);

// The copies that make the step from the source's tensors. Plans stage by stage and reads nothing. `tensors`:
// where each tensor of `plan` comes from. Errors: Corrupt naming a tensor whose elements are missing in the
// source, or stored twice.
Result<ProgramSize> SizeOfCopies(const CheckpointSource& source, const StepPlan& plan,
                                 std::span<const WrittenTensor> tensors);

}  // namespace cairn
