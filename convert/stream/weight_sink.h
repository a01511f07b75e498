// Where stripped weights go: a native step or a directory of safetensors files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckpt/model/tensor.h"
#include "convert/stream/fingerprint.h"

namespace cairn {

// One parameter on its way: `spec` of the model, and the type of the written weight.
struct StrippedWeight {
  ParameterSpec spec;
  Dtype dtype = Dtype::kF16;
};

struct WrittenWeights {
  std::string path;
  uint64_t bytes = 0;
  uint64_t files = 0;
};

// Nothing of it is left unless Commit() succeeds.
class WeightSink {
 public:
  virtual ~WeightSink() = default;

  // The parameters to write next, as indices into the weights that the sink was made with; empty after the
  // last ones.
  virtual Result<std::vector<uint32_t>> Next() = 0;
  // The next block of parameter `block.tensor`, already of the written type, in row-major order.
  virtual Status Write(const Block& block) = 0;
  // Makes it what a reader finds. `source` is the overall fingerprint of the tensors that were read.
  virtual Result<WrittenWeights> Commit(const Digest& source) = 0;
};

}  // namespace cairn
