// The gradient of a weight by tiles, activations and rotations, against libtorch in double precision, in odd
// sizes. On a CPU without the kernel for tiles the products' tests are skipped.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "runtime/model/gemm/tiled_gemm.h"
#include "runtime/model/layers/activation.h"
#include "runtime/model/layers/rotary.h"

namespace cairn {
namespace {

using at::Tensor;

double Worst(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// What `forward` gives, and the gradient of its input for an output gradient that is not flat.
std::pair<Tensor, Tensor> WithGradient(const Tensor& input,
                                       const std::function<Tensor(const Tensor&)>& forward) {
  const Tensor leaf = input.detach().requires_grad_(true);
  const Tensor y = forward(leaf);
  y.backward(at::arange(y.numel(), at::kDouble).sin().view(y.sizes()).to(y.scalar_type()));
  return {y.detach(), leaf.grad()};
}

class TilesTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(3); }
  at::ScalarType type() const { return GetParam(); }
  bool wide() const { return type() == at::kFloat; }
  Tensor Random(at::IntArrayRef sizes) const { return at::randn(sizes, type()); }
};
INSTANTIATE_TEST_SUITE_P(Types, TilesTest, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& type) { return std::string(at::toString(type.param)); });

TEST_P(TilesTest, TransposedProductIsAddedInFullPrecision) {
  if (!HasTiles(type())) GTEST_SKIP() << "this CPU has no such kernel";
  for (const auto& [n, m, k] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {2, 70, 3}, {65, 64, 129}, {1027, 130, 66}}) {
    const Tensor a = Random({n, m}), b = Random({n, k + 5}).narrow(1, 2, k), before = at::randn({m, k});
    const Tensor c = before.clone();
    AddTransposedProduct(c, a, b);
    const Tensor expected = before.to(at::kDouble) + a.to(at::kDouble).t().mm(b.to(at::kDouble));
    EXPECT_LT(Worst(c, expected), 2e-6 * std::sqrt(n) * 10) << n << " x " << m << " x " << k;
  }
}

TEST_P(TilesTest, TheNumberOfThreadsChangesNoBit) {
  if (!HasTiles(type())) GTEST_SKIP() << "this CPU has no such kernel";
  const Tensor a = Random({600, 130}), b = Random({600, 70});
  const auto run = [&] {
    Tensor c = at::zeros({130, 70});
    AddTransposedProduct(c, a, b);
    return c;
  };
  const int threads = at::get_num_threads();
  const Tensor many = run();
  at::set_num_threads(1);
  const Tensor one = run();
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, many));
}

TEST_P(TilesTest, ActivationsAreLibtorchsInDouble) {
  const Tensor x = Random({3, 7, 46}) * 6;  // far into both tails
  const auto expect_same = [&](const std::function<Tensor(const Tensor&)>& ours,
                               const std::function<Tensor(const Tensor&)>& theirs) {
    const auto [y, grad] = WithGradient(x, ours);
    const auto [expected, expected_grad] = WithGradient(x.to(at::kDouble), theirs);
    EXPECT_LT(Worst(y, expected) / expected.abs().max().item<double>(), wide() ? 3e-6 : 8e-3);
    EXPECT_LT(Worst(grad, expected_grad) / expected_grad.abs().max().item<double>(), wide() ? 3e-6 : 8e-3);
  };
  expect_same([](const Tensor& t) { return Activate(Activation::kGeluTanh, t); },
              [](const Tensor& t) { return at::gelu(t, "tanh"); });
  expect_same([](const Tensor& t) { return ActivateGated(Activation::kSilu, t); },
              [](const Tensor& t) { return at::silu(t.narrow(-1, 0, 23)) * t.narrow(-1, 23, 23); });
}

TEST_P(TilesTest, PairsAreTurnedByTheirAngles) {
  constexpr int64_t kPairs = 3, kHead = 8;
  const Tensor x = Random({2, 9, 4, 2 * kHead}).narrow(-1, 0, kHead);  // heads that do not touch
  const Tensor turns =
      at::outer(at::arange(9, at::kDouble), at::pow(100.0, -at::arange(kPairs, at::kDouble) / kPairs))
          .unsqueeze(1);
  for (const bool interleaved : {false, true}) {
    RotarySpec spec;
    spec.base = 100;
    spec.interleaved = interleaved;
    const Rotary rotary(spec, kPairs, 9);
    const auto half = [&](const Tensor& t, int which) {
      return interleaved ? t.slice(-1, which, 2 * kPairs, 2) : t.narrow(-1, which * kPairs, kPairs);
    };
    const auto by_hand = [&](const Tensor& t) {
      const Tensor a = half(t, 0) * turns.cos() - half(t, 1) * turns.sin();
      const Tensor b = half(t, 1) * turns.cos() + half(t, 0) * turns.sin();
      const Tensor both = interleaved ? at::stack({a, b}, -1).flatten(-2) : at::cat({a, b}, -1);
      return at::cat({both, t.narrow(-1, 2 * kPairs, kHead - 2 * kPairs)}, -1);
    };
    const auto [y, grad] = WithGradient(x, [&](const Tensor& t) { return rotary.forward(t); });
    const auto [expected, expected_grad] = WithGradient(x.to(at::kDouble), by_hand);
    EXPECT_LT(Worst(y, expected), wide() ? 2e-6 : 2e-2);
    EXPECT_LT(Worst(grad, expected_grad), wide() ? 2e-6 : 8e-3);
  }
}

}  // namespace
}  // namespace cairn
