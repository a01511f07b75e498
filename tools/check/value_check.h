// Checks that values make sense: no NaN or infinity in floats, and every 16-bit weight is its fp32 master
// rounded to nearest even, bit for bit; and what the values of experts tell (expert_verdict.h).
#pragma once

#include <functional>

#include "ckpt/step/verify.h"

namespace cairn {

struct ExpertCensus;

struct ValueReport : VerifyReport {
  std::vector<std::string> notes;  // that do not fail the check
  // Lost experts (expert_verdict.h). They are not facts about bytes, so no record of the step has them.
  std::vector<Problem> experts;
};

// One problem per tensor and kind: the number of elements, and (in a native step) the place of the first.
// `census` is that of the same tensors. Memory is bounded by `max_memory`. (Vocabulary padding is not stored,
// so there is none to check.)
ValueReport CheckValues(CheckpointSource& step, const ExpertCensus& census, uint64_t max_memory,
                        const std::function<void(uint64_t)>& progress = {});

// Where element `index` of a tensor's row-major order is stored. Requires a catalog that covers it.
struct StoredAt {
  uint32_t file = 0;  // into the catalog
  uint64_t offset = 0;
};
StoredAt LocateElement(const StepCatalog& catalog, uint32_t tensor, uint64_t index);

}  // namespace cairn
