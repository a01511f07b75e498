// An activation that is kept until backward needs it: unchanged, cut across the tensor parallel ranks, or in
// host memory (--partition-activations, --checkpoint-in-cpu).
#pragma once

#include <ATen/Tensor.h>

#include "runtime/comm/process_group.h"

namespace cairn {

struct Keeping {
  // All of them have the same activation, and each keeps only its part. One rank: all of it.
  ProcessGroup cut_across;
  bool in_host_memory = false;

  // Does not copy.
  bool plain() const { return cut_across.size() == 1 && !in_host_memory; }
};

class KeptActivation {
 public:
  // Holds on to `x` itself only if nothing is copied. The copy off a GPU waits for nothing.
  KeptActivation(const at::Tensor& x, const Keeping& keeping);
  // Equal to x, without its history. Collective over the ranks that it is cut across.
  at::Tensor Get() const;

 private:
  Keeping keeping_;
  std::vector<int64_t> shape_;
  at::TensorOptions options_;
  at::Tensor kept_;
};

}  // namespace cairn
