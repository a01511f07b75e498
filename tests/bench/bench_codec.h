// Measures the codec on a checkpoint's tensors: size and speed by class, which is role and dtype.
#pragma once

#include "tests/bench/bench_save.h"

namespace cairn {

struct CodecClass {
  std::string name;  // "exp_avg_fp32"
  uint64_t bytes = 0;
  uint64_t stored_bytes = 0;  // chunks that do not pay count as they are
};

struct CodecBench {
  BenchResult result;  // series NAME_in (encoding) and NAME_out, in bytes of the tensors
  std::vector<CodecClass> classes;
};

// One thread, blocks of chunks that are read beforehand; at most options.bytes of each class. Random states
// are left out. What is encoded is decoded and compared.
Result<CodecBench> MeasureCheckpointCodec(const BenchOptions& options, const std::string& checkpoint);

}  // namespace cairn
