#include "runtime/model/gemm/gemm.h"

#include <ATen/ATen.h>

#include "runtime/model/gemm/tiled_gemm.h"

namespace cairn {
namespace {

using at::Tensor;

// An operation that libtorch registers where oneDNN is built in, by its name.
template <typename Signature>
std::optional<c10::TypedOperatorHandle<Signature>> FindOneDnn(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  return found ? std::optional(found->typed<Signature>()) : std::nullopt;
}

// oneDNN's x w^T + b on dense tensors; libtorch registers it for its compiler.
using NoScalars = c10::List<std::optional<at::Scalar>>;
using OneDnnLinear = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, c10::string_view,
                            NoScalars, std::optional<c10::string_view>);
const auto& FindOneDnnLinear() {
  static const auto linear = FindOneDnn<OneDnnLinear>("mkldnn::_linear_pointwise");
  return linear;
}

bool UseOneDnn(const Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.size(0) > 1 &&
         at::globalContext().userEnabledMkldnn() && FindOneDnnLinear();
}

// x [n, k] times w [m, k] transposed, any strides.
Tensor Product(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias) {
  if (UseOneDnn(x)) return FindOneDnnLinear()->call(x, w, bias, "none", NoScalars(), "");
  if (ComputeInFp32(x)) {
    const std::optional<Tensor> wide_bias = bias ? std::optional(bias->to(at::kFloat)) : std::nullopt;
    return Product(x.to(at::kFloat), w.to(at::kFloat), wide_bias).to(x.scalar_type());
  }
  return bias ? at::addmm(*bias, x, w.t()) : at::mm(x, w.t());
}

}  // namespace

bool HasBf16Products() {
  static const bool has = [] {
    const auto ask = FindOneDnn<bool()>("mkldnn::_is_mkldnn_bf16_supported");
    return ask && ask->call();
  }();
  return has && at::globalContext().userEnabledMkldnn();
}

bool ComputeInFp32(const Tensor& x) {
  if (!x.is_cpu()) return false;
  return x.scalar_type() == at::kHalf || (x.scalar_type() == at::kBFloat16 && !HasBf16Products());
}

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
