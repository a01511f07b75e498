// The products and functions that a CPU computes by tiles and in one pass, against libtorch's in double
// precision, in odd sizes. On a CPU without such kernels the products' tests are skipped.
#include "runtime/model/tiles.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "runtime/model/activation.h"
#include "runtime/model/rotary.h"
#include "runtime/model/tiled_attention.h"
#include "runtime/model/tiled_gemm.h"

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

TEST_P(TilesTest, CausalAttentionIsLibtorchsInDouble) {
  if (!HasTiles(type())) GTEST_SKIP() << "this CPU has no such kernel";
  struct Case {
    int64_t b, s, heads, shared, d;
  };
  for (const Case& c : {Case{1, 1, 1, 1, 2}, {2, 65, 4, 2, 6}, {1, 200, 3, 3, 64}, {3, 127, 6, 1, 10}}) {
    const auto attend = [&](const Tensor& fused, bool tiled) {
      const auto parts = fused.split_with_sizes({c.heads * c.d, c.shared * c.d, c.shared * c.d}, -1);
      const Tensor q = parts[0].view({c.b, c.s, c.heads, c.d}), k = parts[1].view({c.b, c.s, c.shared, c.d}),
                   v = parts[2].view({c.b, c.s, c.shared, c.d});
      if (tiled) return CausalAttention(q, k, v, 0.3);
      const auto all = [&](const Tensor& x) {
        return x.repeat_interleave(c.heads / x.size(2), 2).transpose(1, 2);
      };
      return at::scaled_dot_product_attention(all(q), all(k), all(v), std::nullopt, 0.0, true, 0.3)
          .transpose(1, 2)
          .contiguous();
    };
    const Tensor fused = Random({c.b, c.s, (c.heads + 2 * c.shared) * c.d});
    const auto [y, grad] = WithGradient(fused, [&](const Tensor& x) { return attend(x, true); });
    const auto [expected, expected_grad] =
        WithGradient(fused.to(at::kDouble), [&](const Tensor& x) { return attend(x, false); });
    EXPECT_LT(Worst(y, expected), wide() ? 5e-6 : 2e-2) << c.s << " tokens";
    EXPECT_LT(Worst(grad, expected_grad), wide() ? 2e-5 : 8e-2) << c.s << " tokens";
  }
}

// Documents of one token, of a tile, over several tiles; another in each sample.
TEST_P(TilesTest, CausalAttentionStaysInItsDocument) {
  if (!HasTiles(type())) GTEST_SKIP() << "this CPU has no such kernel";
  constexpr int64_t kTokens = 330;
  const Tensor first_keys = at::zeros({3, kTokens}, at::kLong);
  for (const int64_t begin : {1, 2, 64, 128, 131, 320}) first_keys[1].slice(0, begin).fill_(begin);
  for (const int64_t begin : {100, 329}) first_keys[2].slice(0, begin).fill_(begin);
  const auto parts_of = [&](const Tensor& fused) {
    return fused.view({3, kTokens, 8, 10}).split_with_sizes({4, 2, 2}, 2);
  };
  const auto plain = [&](const Tensor& fused) {
    const std::vector<Tensor> qkv = parts_of(fused);
    const auto all = [](const Tensor& x) { return x.repeat_interleave(4 / x.size(2), 2).transpose(1, 2); };
    const Tensor place = at::arange(kTokens);
    const Tensor seen = at::logical_and(place.unsqueeze(0) <= place.unsqueeze(1),
                                        place >= first_keys.view({3, 1, kTokens, 1}));
    return at::scaled_dot_product_attention(all(qkv[0]), all(qkv[1]), all(qkv[2]), seen, 0.0, false, 0.3)
        .transpose(1, 2)
        .contiguous();
  };
  const Tensor fused = Random({3, kTokens, 80});
  const auto [y, grad] = WithGradient(fused, [&](const Tensor& x) {
    const std::vector<Tensor> qkv = parts_of(x);
    return CausalAttention(qkv[0], qkv[1], qkv[2], 0.3, first_keys);
  });
  const auto [expected, expected_grad] = WithGradient(fused.to(at::kDouble), plain);
  EXPECT_LT(Worst(y, expected), wide() ? 5e-6 : 2e-2);
  EXPECT_LT(Worst(grad, expected_grad), wide() ? 2e-5 : 8e-2);
}

TEST_P(TilesTest, TheNumberOfThreadsChangesNoBit) {
  if (!HasTiles(type())) GTEST_SKIP() << "this CPU has no such kernel";
  const Tensor q = Random({2, 100, 4, 8}), k = Random({2, 100, 2, 8}), v = Random({2, 100, 2, 8});
  const Tensor a = Random({600, 130}), b = Random({600, 70});
  const auto run = [&] {
    Tensor c = at::zeros({130, 70});
    AddTransposedProduct(c, a, b);
    const auto [y, grad] = WithGradient(q, [&](const Tensor& x) { return CausalAttention(x, k, v, 0.5); });
    return std::vector<Tensor>{c, y, grad};
  };
  const int threads = at::get_num_threads();
  const std::vector<Tensor> many = run();
  at::set_num_threads(1);
  const std::vector<Tensor> one = run();
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], many[i])) << i;
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
