// The iterations of a run in order, in bounded memory.
//
// Each log line gives one Sample. Beyond kMaxSamples of them neighbours are merged in pairs: a log of any
// length keeps its exact means and approximately its shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cairn {

struct Sample {
  double seconds = 0;         // of one iteration; NaN: unknown
  int32_t iteration = 0;      // the last one of the sample
  int32_t global_batch = -1;  // -1: unknown
  float loss = 0;             // NaN: unknown, or it was NaN
  float grad_norm = 0;        // NaN: unknown
  uint16_t skipped = 0;       // iterations
  uint16_t nans = 0;
  uint32_t lines = 1;  // log lines of which it is the mean
};

class SampleSeries {
 public:
  static constexpr size_t kMaxSamples = size_t{1} << 20;  // 32 MiB

  void Add(const Sample& sample);
  void Clear();
  bool empty() const { return samples_.empty(); }
  const Sample& front() const { return samples_.front(); }
  const Sample& back() const { return samples_.back(); }
  const std::vector<Sample>& samples() const { return samples_; }

  // Moves the samples from `iteration` on to `removed`.
  void CutFrom(int32_t iteration, std::vector<Sample>& removed);
  void Append(const SampleSeries& later);
  // Moves all samples out.
  std::vector<Sample> Release() { return std::move(samples_); }

 private:
  uint32_t lines_per_sample_ = 1;
  std::vector<Sample> samples_;
};

}  // namespace cairn
