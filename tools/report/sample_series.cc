#include "tools/report/sample_series.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

// The mean if both have a value; otherwise the existing one.
template <typename T>
T Mean(T a, uint32_t a_lines, T b, uint32_t b_lines) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return static_cast<T>((static_cast<double>(a) * a_lines + static_cast<double>(b) * b_lines) /
                        (a_lines + b_lines));
}

uint16_t Sum(uint16_t a, uint16_t b) { return static_cast<uint16_t>(std::min(65535, a + b)); }

Sample Merged(const Sample& a, const Sample& b) {
  Sample both = b;
  both.seconds = Mean(a.seconds, a.lines, b.seconds, b.lines);
  both.loss = Mean(a.loss, a.lines, b.loss, b.lines);
  both.grad_norm = Mean(a.grad_norm, a.lines, b.grad_norm, b.lines);
  both.skipped = Sum(a.skipped, b.skipped);
  both.nans = Sum(a.nans, b.nans);
  both.lines = a.lines + b.lines;
  return both;
}

}  // namespace

void SampleSeries::Add(const Sample& sample) {
  if (!samples_.empty() && samples_.back().lines < lines_per_sample_) {
    samples_.back() = Merged(samples_.back(), sample);
    return;
  }
  if (samples_.size() == kMaxSamples) {
    for (size_t i = 0; i < kMaxSamples / 2; ++i) samples_[i] = Merged(samples_[2 * i], samples_[2 * i + 1]);
    samples_.resize(kMaxSamples / 2);
    lines_per_sample_ *= 2;
  }
  samples_.push_back(sample);
}

void SampleSeries::Clear() {
  samples_.clear();
  lines_per_sample_ = 1;
}

void SampleSeries::CutFrom(int32_t iteration, std::vector<Sample>& removed) {
  const auto first = std::ranges::lower_bound(samples_, iteration, {}, &Sample::iteration);
  removed.insert(removed.end(), first, samples_.end());
  samples_.erase(first, samples_.end());
}

void SampleSeries::Append(const SampleSeries& later) {
  for (const Sample& sample : later.samples_) Add(sample);
}

}  // namespace cairn
