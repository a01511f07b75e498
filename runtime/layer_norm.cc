#include "runtime/layer_norm.h"

#include <torch/torch.h>

namespace cairn {

using at::Tensor;

Tensor LayerNorm::forward(const Tensor& x) const {
  const ByHand by_hand({x});
  const auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, weight_.value, bias_.value, epsilon_);
  return by_hand.Finish(y, [this, x, mean, rstd](const Tensor& dy) -> std::vector<Tensor> {
    const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
        dy, x, {x.size(-1)}, mean, rstd, weight_.value, bias_.value, {true, true, true});
    Tensor(weight_.grad).add_(dweight);
    Tensor(bias_.grad).add_(dbias);
    return {dx};
  });
}

}  // namespace cairn
