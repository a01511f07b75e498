#include "runtime/model/layers/activation.h"

#include <ATen/ATen.h>

#include "runtime/model/autograd/autograd.h"

namespace cairn {

namespace {

using at::Tensor;

Tensor GateBySilu(const Tensor& gate_and_up, int64_t f) {
  return at::silu(gate_and_up.narrow(-1, 0, f)).mul_(gate_and_up.narrow(-1, f, f));
}
Tensor GateBySiluGrad(const Tensor& gate_and_up, int64_t f, const Tensor& dy) {
  const Tensor gate = gate_and_up.narrow(-1, 0, f), up = gate_and_up.narrow(-1, f, f);
  Tensor grad = at::empty_like(gate_and_up);
  grad.narrow(-1, f, f).copy_(at::silu(gate).mul_(dy));
  grad.narrow(-1, 0, f).copy_(at::silu_backward(dy * up, gate));
  return grad;
}

}  // namespace

Tensor Activate(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x, "none");
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSquaredRelu:
      return at::relu(x).square();
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kLinear:
      return x;
  }
  TORCH_CHECK(false, "no such activation");
}

Tensor ActivateGated(Activation activation, const Tensor& gate_and_up) {
  const int64_t f = gate_and_up.size(-1) / 2;
  if (activation != Activation::kSilu)
    return Activate(activation, gate_and_up.narrow(-1, 0, f)) * gate_and_up.narrow(-1, f, f);
  const ByHand by_hand({gate_and_up});
  return by_hand.Finish(GateBySilu(gate_and_up, f),
                        [gate_and_up, f](const Tensor& dy) -> std::vector<Tensor> {
                          return {GateBySiluGrad(gate_and_up, f, dy)};
                        });
}

}  // namespace cairn
