// Norms against fp64 and libtorch's autograd; the GPU's kernels by teams of threads of this CPU.
#include "runtime/model/norm/norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <barrier>
#include <cmath>
#include <limits>
#include <thread>

#include "runtime/comm/nccl_backend.h"
#include "runtime/model/norm/narrow_float.h"
#include "runtime/model/norm/norm_core.h"
#include "runtime/model/norm/norm_kernels.h"
#include "tests/support/gpu.h"

namespace cairn {
namespace {

using at::Tensor;

constexpr double kP = 0.25;

struct NormCase {
  at::ScalarType type = at::kFloat;
  at::ScalarType weight_type = at::kFloat;
  Normalization kind = Normalization::kLayerNorm;
  bool learns = true;
  bool residual = false;
  bool drops = false;
};

std::vector<NormCase> NormCases() {
  std::vector<NormCase> cases;
  for (const auto& [type, weights] :
       {std::pair(at::kFloat, at::kFloat), std::pair(at::kBFloat16, at::kBFloat16),
        std::pair(at::kBFloat16, at::kFloat), std::pair(at::kHalf, at::kHalf)})
    for (const Normalization kind : {Normalization::kLayerNorm, Normalization::kRmsNorm})
      for (const bool learns : {true, false})
        for (const auto& [residual, drops] : {std::pair(false, false), {true, false}, {true, true}})
          cases.push_back({type, weights, kind, learns, residual, drops});
  return cases;
}

std::string NameOf(const NormCase& c) {
  return fmt::format("{} weights {} {}{}{}{}", toString(c.type), toString(c.weight_type),
                     c.kind == Normalization::kRmsNorm ? "rms" : "layer", c.learns ? " learns" : "",
                     c.residual ? " residual" : "", c.drops ? " drops" : "");
}

// Several groups of rows, the last one short; a width of no vector.
struct NormInputs {
  explicit NormInputs(const NormCase& c, int64_t rows = 70, int64_t width = 37) {
    at::manual_seed(7);
    x = at::randn({rows, width}).to(c.type);
    if (c.residual) residual = (at::randn({rows, width}) + 0.5).to(c.type);
    if (c.drops) mask = DrawKeepMask(x, kP, true, nullptr);
    dn = at::randn({rows, width}).to(c.type);
    if (c.residual) dy = at::randn({rows, width}).to(c.type);
    settings = {{}, {}, 1e-3, c.kind == Normalization::kLayerNorm};
    if (!c.learns) return;
    settings.weight = (1 + at::randn({width})).to(c.weight_type);
    if (settings.centres) settings.bias = at::randn({width}).to(c.weight_type);
  }
  Tensor x, residual, dn, dy;
  KeepMask mask;
  NormSettings settings;
};

struct NormOutputs {
  Normed forward;
  NormGrads backward;
};

// The training's operations on the device of the inputs.
NormOutputs ByProduct(const NormInputs& in) {
  NormOutputs out;
  out.forward = NormForwardOf(in.x, in.residual, in.mask, in.settings);
  out.backward = NormBackwardOf(in.dn, in.dy, out.forward, in.mask, in.settings);
  return out;
}

// A block of GPU threads, on a CPU.
class ThreadTeam {
 public:
  struct Shared {
    explicit Shared(int count) : sums(static_cast<size_t>(count)), all(count) {}
    std::vector<TwoSums> sums;
    std::barrier<> all;
  };
  ThreadTeam(Shared& shared, size_t thread) : shared_(shared), thread_(thread) {}

  template <typename F>
  void Visit(int64_t n, F f) const {
    for (auto i = static_cast<int64_t>(thread_); i < n; i += static_cast<int64_t>(shared_.sums.size())) f(i);
  }
  template <typename F>
  float Sum(int64_t n, F f) const {
    return SumTwo(n, [&](int64_t i) { return TwoSums{f(i), 0}; }).first;
  }
  template <typename F>
  TwoSums SumTwo(int64_t n, F f) const {
    TwoSums own{0, 0}, sum{0, 0};
    Visit(n, [&](int64_t i) {
      const TwoSums more = f(i);
      own = {own.first + more.first, own.second + more.second};
    });
    shared_.all.arrive_and_wait();
    shared_.sums[thread_] = own;
    shared_.all.arrive_and_wait();
    for (const TwoSums& more : shared_.sums) sum = {sum.first + more.first, sum.second + more.second};
    return sum;
  }
  bool leads() const { return thread_ == 0; }

 private:
  Shared& shared_;
  size_t thread_;
};

template <typename T>
T* DataOf(const Tensor& t) {
  return t.defined() ? static_cast<T*>(t.data_ptr()) : nullptr;
}

template <typename T>
void RunTeam(int team_size, const NormForward<T>& forward, const NormBackward<T>& backward, int64_t rows,
             NormWeightGrads sums) {
  ThreadTeam::Shared shared(team_size);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < team_size; ++thread)
    threads.emplace_back([&, thread] {
      const ThreadTeam team(shared, static_cast<size_t>(thread));
      for (int64_t row = 0; row < rows; ++row) NormRow(team, forward, row);
      shared.all.arrive_and_wait();  // statistics: the launch of another kernel
      for (int64_t row = 0; row < rows; ++row) NormGradRow(team, backward, row, sums);
    });
}

// The GPU's kernels, by teams of threads of this CPU. Requires weights of the activations' type.
template <typename T>
NormOutputs ByTeamOf(int team_size, const NormInputs& in) {
  const int64_t rows = in.x.size(0), width = in.x.size(1);
  const Tensor keep = in.mask.keep, weight = in.settings.weight, bias = in.settings.bias;
  const auto scale = static_cast<float>(in.mask.scale);
  NormOutputs out;
  out.forward.y = in.residual.defined() ? at::empty_like(in.x) : in.x;
  out.forward.n = at::empty_like(in.x);
  if (in.settings.centres) out.forward.mean = at::empty({rows});
  out.forward.rstd = at::empty({rows});
  out.backward.dy = at::empty_like(in.x);
  out.backward.dx = keep.defined() ? at::empty_like(in.x) : out.backward.dy;
  if (weight.defined()) out.backward.weights = at::zeros({bias.defined() ? 2 : 1, width});
  auto* const sums = DataOf<float>(out.backward.weights);
  RunTeam<T>(team_size,
             {.width = width,
              .epsilon = static_cast<float>(in.settings.epsilon),
              .x = DataOf<T>(in.x),
              .residual = DataOf<T>(in.residual),
              .keep = DataOf<uint8_t>(keep),
              .keep_scale = scale,
              .weight = DataOf<T>(weight),
              .bias = DataOf<T>(bias),
              .y = in.residual.defined() ? DataOf<T>(out.forward.y) : nullptr,
              .n = DataOf<T>(out.forward.n),
              .mean = DataOf<float>(out.forward.mean),
              .rstd = DataOf<float>(out.forward.rstd)},
             {.width = width,
              .dn = DataOf<T>(in.dn),
              .dy_of_others = DataOf<T>(in.dy),
              .y = DataOf<T>(out.forward.y),
              .mean = DataOf<float>(out.forward.mean),
              .rstd = DataOf<float>(out.forward.rstd),
              .weight = DataOf<T>(weight),
              .keep = DataOf<uint8_t>(keep),
              .keep_scale = scale,
              .dy = DataOf<T>(out.backward.dy),
              .dx = keep.defined() ? DataOf<T>(out.backward.dx) : nullptr},
             rows, {sums, bias.defined() ? sums + width : nullptr});
  return out;
}

NormOutputs ByTeam(int team_size, const NormInputs& in) {
  if (in.x.scalar_type() == at::kFloat) return ByTeamOf<float>(team_size, in);
  return in.x.scalar_type() == at::kHalf ? ByTeamOf<Fp16>(team_size, in) : ByTeamOf<Bf16>(team_size, in);
}

// fp64, from y as it was stored.
NormOutputs ByAutograd(const NormInputs& in, const Tensor& stored) {
  const auto wide = [](const Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
  NormOutputs out;
  out.forward.y = wide(in.x);
  if (in.mask.keep.defined()) out.forward.y = out.forward.y * in.mask.keep * in.mask.scale;
  if (in.residual.defined()) out.forward.y = out.forward.y + wide(in.residual);
  const Tensor y = wide(stored).requires_grad_();
  const bool learns = in.settings.weight.defined();
  const Tensor weight =
      (learns ? wide(in.settings.weight) : at::ones({y.size(1)}, at::kDouble)).requires_grad_();
  const Tensor bias = in.settings.bias.defined() ? wide(in.settings.bias).requires_grad_() : Tensor();
  out.forward.n = in.settings.centres ? at::layer_norm(y, {y.size(1)}, weight, bias, in.settings.epsilon)
                                      : at::rms_norm(y, {y.size(1)}, weight, in.settings.epsilon);
  out.forward.n.backward(wide(in.dn));
  out.backward.dy = in.dy.defined() ? y.grad() + wide(in.dy) : y.grad();
  out.backward.dx = in.mask.keep.defined() ? out.backward.dy * in.mask.keep * in.mask.scale : out.backward.dy;
  if (learns)
    out.backward.weights =
        bias.defined() ? at::stack({weight.grad(), bias.grad()}) : weight.grad().unsqueeze(0);
  return out;
}

double DifferenceOf(const Tensor& got, const Tensor& wanted) {
  const Tensor wide = wanted.to(at::kDouble);
  return ((got.to(at::kDouble).cpu() - wide).abs() / (1 + wide.abs())).max().item<double>();
}

// `sums`: of the gradients of the weights, which are fp32.
void ExpectClose(const NormOutputs& got, const NormOutputs& wanted, at::ScalarType type, double roundings,
                 double sums = 5e-6) {
  const double rounding = roundings * (type == at::kFloat ? 1e-6 : type == at::kBFloat16 ? 0x1p-8 : 0x1p-11);
  EXPECT_LE(DifferenceOf(got.forward.y, wanted.forward.y), rounding);
  EXPECT_LE(DifferenceOf(got.forward.n, wanted.forward.n), rounding);
  EXPECT_LE(DifferenceOf(got.backward.dy, wanted.backward.dy), rounding);
  EXPECT_LE(DifferenceOf(got.backward.dx, wanted.backward.dx), 2 * rounding);
  ASSERT_EQ(got.backward.weights.defined(), wanted.backward.weights.defined());
  if (got.backward.weights.defined()) {
    EXPECT_LE(DifferenceOf(got.backward.weights, wanted.backward.weights), sums);
  }
}

TEST(NormTest, KernelsEqualFp64WithinOneRounding) {
  for (const NormCase& c : NormCases()) {
    if (c.learns && c.weight_type != c.type) continue;  // libtorch's operations
    SCOPED_TRACE(NameOf(c));
    const NormInputs in(c);
    const NormOutputs got = ByTeam(1, in);
    ExpectClose(got, ByAutograd(in, got.forward.y), c.type, 1);
  }
}

TEST(NormTest, OperationsEqualFp64) {
  for (const NormCase& c : NormCases()) {
    SCOPED_TRACE(NameOf(c));
    const NormInputs in(c);
    NormOutputs got;
    got.forward = NormForwardByOperations(in.x, in.residual, in.mask, in.settings);
    got.backward = NormBackwardByOperations(in.dn, in.dy, got.forward, in.mask, in.settings);
    ExpectClose(got, ByAutograd(in, got.forward.y), c.type, 8);  // products and sums are rounded, too
  }
}

TEST(NormTest, NoBitDependsOnTheNumberOfThreads) {
  const NormInputs in({.residual = true, .drops = true}, 3000, 129);
  at::set_num_threads(1);
  const NormOutputs one = ByProduct(in);
  at::set_num_threads(3);
  const NormOutputs three = ByProduct(in);
  EXPECT_TRUE(at::equal(one.forward.n, three.forward.n));
  EXPECT_TRUE(at::equal(one.backward.dx, three.backward.dx));
  EXPECT_TRUE(at::equal(one.backward.weights, three.backward.weights));
}

// The seam to autograd: gradients of weights are added to the existing ones, those of residual and block
// returned.
TEST(NormTest, AfterAResidualBothResultsCarryGradients) {
  const NormInputs in({.residual = true, .drops = true});
  Parameter weight{in.settings.weight, at::ones({37})}, bias{in.settings.bias, at::ones({37})};
  const Norm norm(Normalization::kLayerNorm, weight, bias, in.settings.epsilon);
  const Tensor x = in.x.detach().requires_grad_(), residual = in.residual.detach().requires_grad_();
  const auto [y, n] = norm.forward(residual, x, in.mask);
  torch::autograd::backward({y, n}, {in.dy, in.dn});
  const NormOutputs wanted = ByProduct(in);
  EXPECT_TRUE(at::equal(residual.grad(), wanted.backward.dy));
  EXPECT_TRUE(at::equal(x.grad(), wanted.backward.dx));
  EXPECT_TRUE(at::equal(weight.grad(), 1 + wanted.backward.weights[0]));
  EXPECT_TRUE(at::equal(bias.grad(), 1 + wanted.backward.weights[1]));
}

TEST(NormTest, EmptyAndStridedInputs) {
  const NormSettings settings{at::ones({8}), at::zeros({8}), 1e-5, true};
  const Normed none = NormForwardOf(at::empty({0, 8}), {}, {}, settings);
  EXPECT_EQ(none.n.size(0), 0);
  EXPECT_EQ(NormBackwardOf(none.n, {}, none, {}, settings).weights.abs().max().item<float>(), 0);
  const Tensor across = at::randn({8, 5}).t();
  EXPECT_TRUE(at::equal(NormForwardOf(across, {}, {}, settings).n,
                        NormForwardOf(across.contiguous(), {}, {}, settings).n));
}

TEST(NormTest, ATeamOfThreadsEqualsOneThread) {
  const NormInputs in({.residual = true, .drops = true}, 5);
  const NormOutputs wanted = ByTeam(1, in), got = ByTeam(3, in);
  EXPECT_LE(DifferenceOf(got.forward.n, wanted.forward.n), 1e-6);
  EXPECT_LE(DifferenceOf(got.backward.dx, wanted.backward.dx), 1e-6);
  EXPECT_LE(DifferenceOf(got.backward.weights, wanted.backward.weights), 1e-6);
}

template <typename T>
void ExpectRoundsAsLibtorch(at::ScalarType type) {
  const Tensor bits = at::arange(0, 1 << 16, at::kInt).to(at::kShort);
  const Tensor narrow = bits.view(type), wide = narrow.to(at::kFloat);
  // Each value, the midpoint to the next one, and the values next to the midpoint.
  const Tensor next = wide.roll(-1),
               middle = (wide.to(at::kDouble) + next.to(at::kDouble)).div(2).to(at::kFloat);
  const double infinity = std::numeric_limits<double>::infinity();
  const auto beside = [&](double towards) { return at::nextafter(middle, at::full_like(middle, towards)); };
  const Tensor floats = at::cat(
      {wide, middle, beside(infinity), beside(-infinity), at::randn({4096}) * 1e5, at::randn({4096}) * 1e-7});
  const Tensor wanted = floats.to(type).view(at::kShort);
  int64_t wrong = 0;
  for (int64_t i = 0; i < floats.numel(); ++i) {
    const float x = floats.data_ptr<float>()[i];
    const auto is = static_cast<uint16_t>(wanted.data_ptr<int16_t>()[i]);
    T rounded;
    Round(x, rounded);
    if (std::isnan(x))
      wrong += !std::isnan(Wide(rounded));
    else
      wrong += rounded.bits != is || Wide(rounded) != Wide(T{is});
  }
  EXPECT_EQ(wrong, 0) << type;
  for (int64_t i = 0; i < 1 << 16; ++i) {
    const float is = wide.data_ptr<float>()[i], got = Wide(T{static_cast<uint16_t>(i)});
    EXPECT_TRUE(is == got || (std::isnan(is) && std::isnan(got))) << type << " " << i;
  }
}

TEST(NarrowFloatTest, RoundsAndWidensLikeLibtorch) {
  ExpectRoundsAsLibtorch<Bf16>(at::kBFloat16);
  ExpectRoundsAsLibtorch<Fp16>(at::kHalf);
}

TEST(NormOnGpuTest, EqualsFp64) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU here";
  const at::Device gpu(at::kCUDA, NcclModule::Load(0)->device());
  const auto there = [&](const Tensor& t) { return t.defined() ? t.to(gpu) : t; };
  for (const NormCase& c : NormCases()) {
    // The GPU has kernels for weights of the activations' type; for others libtorch's operations are used,
    // which round more often.
    if (c.learns && c.weight_type != c.type) continue;
    for (const int64_t width : {37, 4096, 8192}) {  // sums of the last do not fit a block's shared memory
      SCOPED_TRACE(fmt::format("{}, width {}", NameOf(c), width));
      const NormInputs in(c, 70, width);
      NormInputs on_gpu = in;
      on_gpu.x = there(in.x), on_gpu.residual = there(in.residual), on_gpu.dn = there(in.dn),
      on_gpu.dy = there(in.dy), on_gpu.mask.keep = there(in.mask.keep);
      on_gpu.settings.weight = there(in.settings.weight), on_gpu.settings.bias = there(in.settings.bias);
      const NormOutputs got = ByProduct(on_gpu);
      ExpectClose(got, ByAutograd(in, got.forward.y.cpu()), c.type, 4, 2e-5);
    }
  }
}

}  // namespace
}  // namespace cairn
