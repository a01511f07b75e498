// The one seam to libtorch's autograd: forward results, and the function that carries their gradients
// backward.
//
// Here parameters are not autograd's leaves. A layer's backward adds the gradients of its weights straight to
// the fp32 buffer (Parameter::grad) and returns only those of its inputs, so no gradient of a weight is ever
// copied or rounded to 16 bits on its way, and the flat buffer is ready for the data parallel reduction.
#pragma once

#include <ATen/Tensor.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <vector>

namespace cairn {

// Gets the gradient of the output; returns those of the inputs, in their order. Runs once, without recording.
using BackwardFunction = std::function<std::vector<at::Tensor>(const at::Tensor& output_grad)>;
// The same for several outputs; undefined if an output got no gradient.
using BackwardOfMany = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& output_grads)>;

// While one lives, autograd records nothing; Finish ties the result to a backward function written by hand.
class ByHand {
 public:
  // Nothing is tied if autograd was not recording, or if no input requires gradients. An empty list always is
  // (an embedding: only its weight learns).
  explicit ByHand(std::vector<at::Tensor> inputs);

  // `backward` must not capture the result itself: that would be a cycle.
  at::Tensor Finish(const at::Tensor& output, BackwardFunction backward) const;
  std::vector<at::Tensor> FinishMany(const std::vector<at::Tensor>& outputs, BackwardOfMany backward) const;

 private:
  std::vector<at::Tensor> inputs_;
  bool wanted_;
  c10::AutoGradMode no_grad_;
};

}  // namespace cairn
