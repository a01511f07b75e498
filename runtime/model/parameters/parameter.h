// A parameter as its layer sees it: its value, and the tensor that its gradient is added to.
//
// It is a handle: the owner of the memory (flat_parameters.h) may place the tensors just before the layer
// runs and remove them afterwards (parameter_unit.h). So a layer asks for them each time that it computes,
// forward and backward, and keeps neither.
#pragma once

#include <ATen/Tensor.h>

#include <memory>

namespace cairn {

class Parameter {
 public:
  Parameter() = default;  // none: a bias that the model does not have
  // `grad`: fp32, the same shape.
  Parameter(at::Tensor value, at::Tensor grad)
      : tensors_(std::make_shared<Tensors>(Tensors{std::move(value), std::move(grad)})) {}

  bool defined() const { return tensors_ != nullptr; }
  // Undefined tensors if the model does not have the parameter, or if it is elsewhere.
  at::Tensor value() const { return tensors_ ? tensors_->value : at::Tensor(); }
  at::Tensor grad() const { return tensors_ ? tensors_->grad : at::Tensor(); }

  // For the owner of the memory: every copy of this handle has them from now on.
  void Place(at::Tensor value, at::Tensor grad) const { *tensors_ = {std::move(value), std::move(grad)}; }

 private:
  struct Tensors {
    at::Tensor value;
    at::Tensor grad;
  };
  std::shared_ptr<Tensors> tensors_;
};

}  // namespace cairn
