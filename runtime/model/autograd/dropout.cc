#include "runtime/model/autograd/dropout.h"

#include <ATen/ATen.h>

#include <optional>

namespace cairn {

using at::Tensor;

KeepMask DrawKeepMask(const Tensor& x, double p, bool training, RandomStreams* own) {
  if (!training || p == 0) return {};
  std::optional<RandomStreams::ParallelRegion> own_stream;
  if (own != nullptr) own_stream.emplace(*own);
  return {at::empty(x.sizes(), x.options().dtype(at::kBool).requires_grad(false)).bernoulli_(1 - p),
          1 / (1 - p)};
}

Tensor Dropout(const Tensor& x, double p, bool training, RandomStreams* own) {
  if (!training || p == 0) return x;
  std::optional<RandomStreams::ParallelRegion> own_stream;
  if (own != nullptr) own_stream.emplace(*own);
  return at::dropout(x, p, true);
}

}  // namespace cairn
