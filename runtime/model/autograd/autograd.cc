#include "runtime/model/autograd/autograd.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace cairn {
namespace {

using torch::autograd::variable_list;

class FunctionNode final : public torch::autograd::Node {
 public:
  explicit FunctionNode(BackwardOfMany backward) : backward_(std::move(backward)) {}

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(backward_, "backward ran twice through the same graph");
    return backward_(grads);
  }
  // Called by the engine as soon as the node has run: frees the activations that the function holds.
  void release_variables() override { backward_ = nullptr; }

 private:
  BackwardOfMany backward_;
};

bool AnyRequiresGrad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.requires_grad(); });
}

}  // namespace

ByHand::ByHand(std::vector<at::Tensor> inputs)
    : inputs_(std::move(inputs)),
      wanted_(at::GradMode::is_enabled() && (inputs_.empty() || AnyRequiresGrad(inputs_))),
      no_grad_(false) {}

at::Tensor ByHand::Finish(const at::Tensor& output, BackwardFunction backward) const {
  const auto of_one = [backward = std::move(backward)](const std::vector<at::Tensor>& grads) {
    return backward(grads[0]);
  };
  return FinishMany({output}, of_one)[0];
}

std::vector<at::Tensor> ByHand::FinishMany(const std::vector<at::Tensor>& outputs,
                                           BackwardOfMany backward) const {
  std::vector<at::Tensor> results;
  for (const at::Tensor& output : outputs)
    results.push_back(output.variable_data());  // no view of anything, as autograd sees it
  if (!wanted_) return results;
  std::shared_ptr<FunctionNode> node(new FunctionNode(std::move(backward)), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs_));
  for (at::Tensor& result : results) torch::autograd::set_history(result, node);
  return results;
}

}  // namespace cairn
