// The products of a linear layer with 16-bit factors, by each route, against libtorch in double precision.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/model/gemm/gemm.h"
#include "runtime/model/gemm/tiled_gemm.h"
#include "tests/support/narrow_products.h"

namespace cairn {
namespace {

using at::Tensor;

// Relative to the largest element.
double RelativeError(const Tensor& a, const Tensor& expected) {
  return ((a.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

void ExpectProductsOf(at::ScalarType type) {
  constexpr int64_t n = 65, in = 200, out = 70;
  at::manual_seed(3);
  const Tensor x = at::randn({n, in}, type), weight = at::randn({out, in}, type);
  const Tensor bias = at::randn({out}, type), dy = at::randn({n, out}, type);
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const double rounded = type == at::kBFloat16 ? 0x1p-8 : 0x1p-10;
  const Tensor y = LinearForward(x, weight, bias), dx = LinearInputGrad(dy, weight);
  EXPECT_EQ(y.scalar_type(), type);
  EXPECT_EQ(dx.scalar_type(), type);
  EXPECT_LT(RelativeError(y, at::addmm(wide(bias), wide(x), wide(weight).t())), rounded);
  EXPECT_LT(RelativeError(dx, wide(dy).mm(wide(weight))), rounded);
  const Tensor grad = at::zeros({out, in});
  AddLinearWeightGrad(grad, dy, x);
  EXPECT_LT(RelativeError(grad, wide(dy).t().mm(wide(x))), 1e-6);
}

TEST(ProductsTest, SixteenBitFactorsAreRoundedOnceAtTheEnd) {
  ExpectProductsOf(at::kBFloat16);
  ExpectProductsOf(at::kHalf);
}

TEST(ProductsTest, ACpuThatDoesNotMultiplyBf16DoesItInFp32) {
  const WithoutOneDnn without;
  EXPECT_FALSE(HasBf16Products());
  EXPECT_FALSE(HasTiles(at::kBFloat16));
  EXPECT_TRUE(ComputeInFp32(at::zeros({1}, at::kBFloat16)));
  EXPECT_FALSE(ComputeInFp32(at::zeros({1})));
  const CountedProducts counted;
  ExpectProductsOf(at::kBFloat16);
  EXPECT_EQ(counted.bf16(), 0);
  at::mm(at::zeros({2, 2}, at::kBFloat16), at::zeros({2, 2}, at::kBFloat16));
  EXPECT_EQ(counted.bf16(), 1);
}

}  // namespace
}  // namespace cairn
