// Data-parallel work over the elements of a block in memory, on OpenMP's threads (OMP_NUM_THREADS; as many as
// there are cores by default).
//
// Chunks have one size and are joined in order, so that floating-point sums are the same with any number of
// threads. Not for the trainer: it leaves the cores to libtorch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {

inline constexpr size_t kChunkElements = 1 << 16;

// Calls `work(part, begin, count)` for each chunk of `count` elements, `part` a copy of `empty`, then
// total.Join(part) for each in order. `work` throws nothing.
template <typename Part, typename Work>
void SumOverChunks(size_t count, const Part& empty, Part& total, const Work& work) {
  const auto chunks = static_cast<int64_t>((count + kChunkElements - 1) / kChunkElements);
  std::vector<Part> parts(static_cast<size_t>(chunks), empty);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) if (chunks > 1)
#endif
  for (int64_t i = 0; i < chunks; ++i) {
    const size_t begin = static_cast<size_t>(i) * kChunkElements;
    work(parts[static_cast<size_t>(i)], begin, std::min(kChunkElements, count - begin));
  }
  for (const Part& part : parts) total.Join(part);
}

}  // namespace cairn
