// Megatron's `--split 969,30,1`: which sequences of a dataset are for training, validation and test.
#pragma once

#include <array>
#include <string_view>

#include "ckpt/base/status.h"
#include "runtime/data/indexed_dataset.h"

namespace cairn {

// The three ranges, in file order; a share of 0 gives an empty range. `split` is one to
// three non-negative numbers, comma-separated, of any sum above 0; missing ones are 0. A bound is the
// cumulative share times the count, rounded half to even. Source: blended_megatron_dataset_config.py and
// _builder.py of megatron-core 0.16. Errors: InvalidArgument.
Result<std::array<SequenceRange, 3>> SplitSequences(std::string_view split, uint64_t sequence_count);

}  // namespace cairn
