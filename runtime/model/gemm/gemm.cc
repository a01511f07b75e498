#include "runtime/model/gemm/gemm.h"

#include <torch/torch.h>

#include "runtime/model/gemm/tiled_gemm.h"

namespace cairn {
namespace {

using at::Tensor;

// oneDNN's x w^T + b on dense tensors; libtorch registers it for its compiler. Null where oneDNN is not built
// in.
using NoScalars = c10::List<std::optional<at::Scalar>>;
using OneDnnLinear = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, c10::string_view,
                            NoScalars, std::optional<c10::string_view>);
const c10::TypedOperatorHandle<OneDnnLinear>* FindOneDnnLinear() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<OneDnnLinear>> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found || !at::globalContext().userEnabledMkldnn()) return std::nullopt;
    return found->typed<OneDnnLinear>();
  }();
  return handle ? &*handle : nullptr;
}

bool UseOneDnn(const Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat && x.size(0) > 1 && FindOneDnnLinear();
}

bool ComputeInFp32(const Tensor& x) { return x.device().is_cpu() && x.scalar_type() == at::kHalf; }

// x [n, k] times w [m, k] transposed, any strides.
Tensor Product(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias) {
  if (UseOneDnn(x)) return FindOneDnnLinear()->call(x, w, bias, "none", NoScalars(), "");
  if (ComputeInFp32(x)) {
    const std::optional<Tensor> wide_bias = bias ? std::optional(bias->to(at::kFloat)) : std::nullopt;
    return Product(x.to(at::kFloat), w.to(at::kFloat), wide_bias).to(at::kHalf);
  }
  return bias ? at::addmm(*bias, x, w.t()) : at::mm(x, w.t());
}

}  // namespace

Tensor LinearForward(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return Product(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

Tensor LinearInputGrad(const Tensor& dy, const Tensor& weight) {
  return Product(dy, weight.t(), std::nullopt);
}

void AddLinearWeightGrad(const Tensor& grad, const Tensor& dy, const Tensor& x) {
  if (x.is_cpu() && HasTiles(x.scalar_type())) {
    AddTransposedProduct(grad, dy, x);
  } else if (x.scalar_type() == at::kFloat) {
    Tensor(grad).addmm_(dy.t(), x);
  } else if (x.is_cuda()) {
    Tensor(grad).add_(at::mm(dy.t(), x, at::kFloat));
  } else {
    AddLinearWeightGrad(grad, dy.to(at::kFloat), x.to(at::kFloat));
  }
}

void AddLinearBiasGrad(const Tensor& grad, const Tensor& dy) {
  Tensor(grad).add_(at::sum(dy, {0}, false, at::kFloat));
}

}  // namespace cairn
