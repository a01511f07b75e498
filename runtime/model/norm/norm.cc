#include "runtime/model/norm/norm.h"

#include <ATen/ATen.h>

#include "runtime/model/autograd/autograd.h"

namespace cairn {

using at::Tensor;

Tensor Norm::forward(const Tensor& x) const {
  const ByHand by_hand({x});
  Normed normed = NormForwardOf(x, Tensor(), {}, Settings());
  const Tensor result = std::move(normed.n);  // backward does not need it
  return by_hand.Finish(result, [this, normed](const Tensor& dn) -> std::vector<Tensor> {
    return {Backward(dn, Tensor(), normed, {}).dy};
  });
}

std::pair<Tensor, Tensor> Norm::forward(const Tensor& residual, const Tensor& block,
                                        const KeepMask& mask) const {
  const ByHand by_hand({residual, block});
  Normed normed = NormForwardOf(block, residual, mask, Settings());
  const Tensor result = std::move(normed.n);
  const std::vector<Tensor> outputs = by_hand.FinishMany(
      {normed.y, result}, [this, normed, mask](const std::vector<Tensor>& grads) -> std::vector<Tensor> {
        const NormGrads before = Backward(grads[1], grads[0], normed, mask);
        return {before.dy, before.dx};
      });
  return {outputs[0], outputs[1]};
}

NormSettings Norm::Settings() const {
  return {weight_.value(), bias_.value(), epsilon_, kind_ == Normalization::kLayerNorm};
}

NormGrads Norm::Backward(const Tensor& dnormed, const Tensor& dy, const Normed& forward,
                         const KeepMask& mask) const {
  NormGrads grads = NormBackwardOf(dnormed, dy, forward, mask, Settings());
  if (!weight_.defined()) return grads;
  shared_with_.AllReduceSum(grads.weights, "norm weight grad");
  weight_.grad().add_(grads.weights[0]);
  if (bias_.defined()) bias_.grad().add_(grads.weights[1]);
  return grads;
}

}  // namespace cairn
