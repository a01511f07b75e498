// LayerNorm is libtorch's; its gradients of weights are not, because those are rounded to 16 bits. The
// formulas: norm_core.h.
#include <ATen/ATen.h>

#include "runtime/model/norm/norm_kernels.h"

namespace cairn {
namespace {

using at::Tensor;

Tensor DroppedForNorm(const Tensor& x, const KeepMask& mask) {
  return mask.keep.defined() ? x.mul(mask.keep).mul_(mask.scale) : x;
}

// The type with which libtorch's kernels give fp32 statistics: the activations' on a GPU, fp32 on a CPU.
Tensor NormWeightAs(const Tensor& parameter, const Tensor& x) {
  return parameter.defined() ? parameter.to(x.is_cpu() ? at::kFloat : x.scalar_type()) : parameter;
}

// fp32, before weight and bias.
Tensor NormalisedOf(const Normed& normed) {
  const Tensor wide = normed.y.to(at::kFloat);
  return (normed.mean.defined() ? wide - normed.mean : wide) * normed.rstd;
}

}  // namespace

Normed NormForwardByOperations(const Tensor& x, const Tensor& residual, const KeepMask& mask,
                               const NormSettings& settings) {
  Normed normed;
  normed.y = residual.defined() ? residual + DroppedForNorm(x, mask) : x;
  if (settings.centres) {
    Tensor mean, rstd;
    std::tie(normed.n, mean, rstd) =
        at::native_layer_norm(normed.y, {x.size(-1)}, NormWeightAs(settings.weight, x),
                              NormWeightAs(settings.bias, x), settings.epsilon);
    normed.mean = mean.to(at::kFloat);
    normed.rstd = rstd.to(at::kFloat);
    return normed;
  }
  const Tensor wide = normed.y.to(at::kFloat);
  normed.rstd = wide.square().mean({-1}, /*keepdim=*/true).add_(settings.epsilon).rsqrt_();
  Tensor n = wide * normed.rstd;
  if (settings.weight.defined()) n.mul_(settings.weight);
  if (settings.bias.defined()) n.add_(settings.bias);
  normed.n = n.to(x.scalar_type());
  return normed;
}

NormGrads NormBackwardByOperations(const Tensor& dn, const Tensor& dy, const Normed& normed,
                                   const KeepMask& mask, const NormSettings& settings) {
  const int64_t h = dn.size(-1);
  const Tensor down = dn.to(at::kFloat), normal = NormalisedOf(normed);
  NormGrads grads;
  if (settings.weight.defined()) {
    std::vector<Tensor> sums = {(down * normal).view({-1, h}).sum(0)};
    if (settings.bias.defined()) sums.push_back(down.view({-1, h}).sum(0));
    grads.weights = at::stack(sums);
  }
  Tensor g = settings.weight.defined() ? down * settings.weight : down;
  const Tensor mean = (g * normal).mean({-1}, /*keepdim=*/true);
  if (settings.centres) g = g - g.mean({-1}, /*keepdim=*/true);
  grads.dy = (g - normal * mean).mul_(normed.rstd);
  if (dy.defined()) grads.dy.add_(dy);
  grads.dy = grads.dy.to(dn.scalar_type());
  grads.dx = DroppedForNorm(grads.dy, mask);
  return grads;
}

}  // namespace cairn
