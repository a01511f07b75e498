// The block is recorded in a graph of its own, from a leaf that stands for x to its result; one node of the
// outer graph runs it backward between the hooks. A unit therefore has an end even if autograd sees none: an
// embedding has no input that requires gradients.
#include "runtime/model/autograd/parameter_unit.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "runtime/model/autograd/autograd.h"

namespace cairn {

using at::Tensor;

Tensor RunUnit(UnitHooks* hooks, int unit, const std::function<Tensor(const Tensor&)>& block,
               const Tensor& x) {
  if (hooks == nullptr) return block(x);
  const bool learns = x.is_floating_point();
  const bool recorded = at::GradMode::is_enabled() && (!learns || x.requires_grad());
  const ByHand by_hand(learns ? std::vector<Tensor>{x} : std::vector<Tensor>{});
  const Tensor leaf = recorded && learns ? x.detach().requires_grad_() : x;
  hooks->BeforeForward(unit);
  const Tensor y = [&] {
    const at::AutoGradMode record(recorded);
    return block(leaf);
  }();
  hooks->AfterForward(unit);
  return by_hand.Finish(y, [hooks, unit, leaf, y, learns](const Tensor& dy) -> std::vector<Tensor> {
    hooks->BeforeBackward(unit);
    {
      const at::AutoGradMode grad(true);
      torch::autograd::backward({y}, {dy});
    }
    hooks->AfterBackward(unit);
    if (!learns) return {};
    return {leaf.grad()};
  });
}

}  // namespace cairn
