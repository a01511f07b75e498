// Which samples a data-parallel rank takes: Megatron's "single" data loader, as arithmetic without state.
//
// The run goes through the samples in order. Each micro-batch step takes the next micro_batch_size * dp_size
// of them and rank r the r-th share, so the order depends on consumed_samples only and survives a change of
// topology. Source: MegatronPretrainingSampler in megatron/legacy/data/data_samplers.py.
#pragma once

#include <cstdint>

#include "ckpt/base/status.h"

namespace cairn {

// Half-open range of sample numbers, for GptDataset::Sample.
struct SampleRange {
  uint64_t begin = 0;
  uint64_t end = 0;  // exclusive
  bool operator==(const SampleRange&) const = default;
};

struct Sampler {
  uint64_t total_samples = 0;  // of the dataset
  uint64_t micro_batch_size = 1;
  uint64_t dp_rank = 0;
  uint64_t dp_size = 1;

  // This rank's samples of micro-batch `micro_batch` (0 first) of the iteration that begins after
  // `consumed_samples`. Errors: InvalidArgument if the data ends before; a partial micro-batch is dropped,
  // as in Megatron.
  Result<SampleRange> MicroBatch(uint64_t consumed_samples, uint64_t micro_batch) const {
    const uint64_t begin = consumed_samples + micro_batch * micro_batch_size * dp_size;
    const uint64_t end = begin + micro_batch_size * dp_size;
    if (end > total_samples)
      return InvalidArgument("the data ends: samples {} to {} were requested, but there are only {}", begin,
                             end, total_samples);
    const uint64_t first = begin + dp_rank * micro_batch_size;
    return SampleRange{first, first + micro_batch_size};
  }
};

}  // namespace cairn
