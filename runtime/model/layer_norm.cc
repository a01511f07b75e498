#include "runtime/model/layer_norm.h"

#include <torch/torch.h>

namespace cairn {
namespace {

using at::Tensor;

// libtorch's CPU kernels take 16-bit activations with fp32 weights, and then give fp32 statistics; its CUDA
// kernels want one type, and always give those.
Tensor AsKernelWants(const Tensor& parameter, const Tensor& x) {
  return x.device().is_cpu() ? parameter.to(at::kFloat) : parameter;
}

// Sums over rows in fp32, of tensors that may be 16 bits wide.
void AddWeightGrads(const Parameter& weight, const Parameter& bias, const Tensor& dy, const Tensor& x,
                    const Tensor& mean, const Tensor& rstd) {
  const int64_t h = x.size(-1);
  const Tensor wide = dy.to(at::kFloat);
  const Tensor normal = (x.to(at::kFloat) - mean).mul_(rstd);
  Tensor(weight.grad).add_(normal.mul_(wide).view({-1, h}).sum(0));
  Tensor(bias.grad).add_(wide.view({-1, h}).sum(0));
}

}  // namespace

Tensor LayerNorm::forward(const Tensor& x) const {
  const ByHand by_hand({x});
  const Tensor weight = AsKernelWants(weight_.value, x), bias = AsKernelWants(bias_.value, x);
  const auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, weight, bias, epsilon_);
  return by_hand.Finish(y, [this, x, mean, rstd, weight, bias](const Tensor& dy) -> std::vector<Tensor> {
    const bool wide = x.scalar_type() == at::kFloat;  // else libtorch sums in 16 bits
    const auto [dx, dweight, dbias] =
        at::native_layer_norm_backward(dy, x, {x.size(-1)}, mean, rstd, weight, bias, {true, wide, wide});
    if (!wide) AddWeightGrads(weight_, bias_, dy, x, mean, rstd);
    if (wide) Tensor(weight_.grad).add_(dweight);
    if (wide) Tensor(bias_.grad).add_(dbias);
    return {dx};
  });
}

}  // namespace cairn
