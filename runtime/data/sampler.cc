#include "runtime/data/sampler.h"

namespace cairn {

Result<Sampler> Sampler::Create(const SamplerOptions& options) {
  if (options.micro_batch_size == 0 || options.dp_rank >= options.dp_size)
    return InvalidArgument(
        "micro-batch size {} on data-parallel rank {} of {}: sizes must be above 0 and the rank below",
        options.micro_batch_size, options.dp_rank, options.dp_size);
  return Sampler(options);
}

Result<SampleRange> Sampler::MicroBatch(uint64_t consumed_samples, uint64_t micro_batch) const {
  const uint64_t window = options_.micro_batch_size * options_.dp_size;
  const uint64_t begin = consumed_samples + micro_batch * window;
  if (begin + window > options_.total_samples)
    return InvalidArgument("the data ends: samples {} to {} were asked for, there are {}", begin,
                           begin + window, options_.total_samples);
  const uint64_t first = begin + options_.dp_rank * options_.micro_batch_size;
  return SampleRange{first, first + options_.micro_batch_size};
}

}  // namespace cairn
