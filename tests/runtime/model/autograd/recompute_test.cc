// Recomputation does not change losses and gradients, dropout included, and saves memory: bytes
// that live between the forward and the backward pass.
#include "runtime/model/autograd/recompute.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ckpt/model/canonical_modules.h"
#include "runtime/config/model_spec.h"
#include "runtime/model/gpt.h"
#include "runtime/model/parameters/initialize.h"
#include "tests/support/live_bytes.h"
#include "tests/support/separated_sides.h"

namespace cairn {
namespace {

using at::Tensor;

constexpr int kLayers = 4;

TrainConfig FourLayers() {
  TrainConfig config;
  config.num_layers = kLayers;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.vocab_size = 101;
  config.seq_length = 16;
  config.micro_batch_size = 3;
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.1;
  config.init_method_std = 0.2;
  return config;
}
constexpr int64_t kInputBytes = 3 * 16 * 32 * 4;  // of a layer

// One unit at a time runs forward, and one backward within which it may run forward again.
class CountingHooks final : public UnitHooks {
 public:
  void BeforeForward(int) override { ++forwards; }
  void AfterForward(int) override {}
  void BeforeBackward(int) override { ++open; }
  void AfterBackward(int) override {
    --open;
    ++backwards;
  }
  int forwards = 0, backwards = 0, open = 0;
};

struct Passes {
  double loss = 0;
  Tensor grads;
  std::string streams;  // afterwards
  int64_t kept = 0;     // bytes of libtorch's between forward and backward
  int64_t kept_in_host_memory = 0;
  int forwards = 0, backwards = 0;  // of units
};

Passes RunPasses(const TrainConfig& config) {
  const SidesApart apart;  // host memory is then not libtorch's, and is counted separately
  at::set_num_threads(1);  // of so little work
  const LiveBytes live;    // from here on: memory allocated before and freed within is not counted correctly
  const std::vector<ParameterSpec> specs = GptSpecs(config);
  FlatParameters parameters(specs, *LayoutOf(specs, {}, 0), 1, config.dtype(), at::kCPU);
  const ParallelDims dims;
  RandomStreams streams(at::kCPU, config.seed, {}, 0);
  CountingHooks hooks;
  const GptStage stage(config, dims, parameters, streams, &hooks);
  InitialValues(config, parameters, [&](const LocalParameter& local, const Tensor& values) {
    parameters.weights().narrow(0, static_cast<int64_t>(local.flat_begin), values.numel()).copy_(values);
  });
  const Tensor tokens = at::arange(3 * 17).remainder(101).view({3, 17});
  const Tensor inputs = tokens.narrow(1, 0, 16).contiguous(), labels = tokens.narrow(1, 1, 16).contiguous();
  Passes passes;
  {
    const int64_t before = live.now();
    const Tensor loss = stage.Loss(stage.forward(inputs, /*training=*/true), labels);
    passes.kept = live.now() - before;
    passes.kept_in_host_memory = static_cast<int64_t>(BytesOn(Side::kHost));
    torch::autograd::backward({loss}, {at::ones_like(loss)});
    passes.loss = loss.item<double>();
  }
  EXPECT_EQ(BytesOn(Side::kHost), 0);
  EXPECT_EQ(hooks.open, 0);
  passes.grads = parameters.grads().clone();
  passes.streams = streams.SaveState();
  passes.forwards = hooks.forwards;
  passes.backwards = hooks.backwards;
  return passes;
}

void Full(TrainConfig& c) { c.recompute_granularity = "full"; }

struct RecomputeCase {
  const char* name;
  void (*change)(TrainConfig&);
};

class RecomputeTest : public testing::TestWithParam<RecomputeCase> {};

TEST_P(RecomputeTest, ChangesNoBitOfLossAndGradients) {
  for (const bool bf16 : {false, true}) {
    TrainConfig config = FourLayers();
    config.bf16 = bf16;
    const Passes plain = RunPasses(config);
    GetParam().change(config);
    const Passes recomputed = RunPasses(config);
    EXPECT_EQ(recomputed.loss, plain.loss);
    EXPECT_TRUE(at::equal(recomputed.grads, plain.grads));
    EXPECT_EQ(recomputed.streams, plain.streams);
    EXPECT_EQ(recomputed.backwards, plain.backwards) << "a unit's gradients are complete once";
    EXPECT_LT(recomputed.kept, plain.kept);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, RecomputeTest,
    testing::Values(
        RecomputeCase{"full", Full},
        RecomputeCase{"two_layers_at_once", [](TrainConfig& c) { Full(c), c.recompute_num_layers = 2; }},
        RecomputeCase{"three_layers_at_once", [](TrainConfig& c) { Full(c), c.recompute_num_layers = 3; }},
        RecomputeCase{"block_of_one", [](TrainConfig& c) { Full(c), c.recompute_method = "block"; }},
        RecomputeCase{"selective", [](TrainConfig& c) { c.recompute_granularity = "selective"; }},
        RecomputeCase{"halves_of_layers", [](TrainConfig& c) { Full(c), c.split_transformers = true; }},
        RecomputeCase{
            "four_halves_at_once",
            [](TrainConfig& c) { Full(c), c.split_transformers = true, c.recompute_num_layers = 4; }},
        RecomputeCase{"halves_of_a_block",
                      [](TrainConfig& c) {
                        Full(c), c.split_transformers = true, c.recompute_method = "block";
                        c.recompute_num_layers = 3;
                      }},
        RecomputeCase{"in_host_memory", [](TrainConfig& c) { Full(c), c.checkpoint_in_cpu = true; }},
        RecomputeCase{
            "two_at_once_in_host_memory",
            [](TrainConfig& c) { Full(c), c.checkpoint_in_cpu = true, c.recompute_num_layers = 2; }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(RecomputeMemoryTest, KeepsOnlyTheInputOfEachGroup) {
  TrainConfig config = FourLayers();
  const int64_t nothing_recomputed = RunPasses(config).kept;
  Full(config);
  const int64_t each = RunPasses(config).kept;
  config.recompute_num_layers = 2;
  const int64_t pairs = RunPasses(config).kept;
  config.recompute_num_layers = kLayers;
  const int64_t whole = RunPasses(config).kept;
  EXPECT_EQ(each - pairs, 2 * kInputBytes);
  EXPECT_EQ(pairs - whole, 1 * kInputBytes);

  config.recompute_num_layers = 1;
  config.checkpoint_in_cpu = true;
  const Passes in_host_memory = RunPasses(config);
  EXPECT_EQ(each - in_host_memory.kept, (kLayers - 1) * kInputBytes);  // the embedding's unit has the first
  EXPECT_EQ(in_host_memory.kept_in_host_memory, kLayers * kInputBytes);
  config.checkpoint_in_cpu = false;

  config.split_transformers = true;
  EXPECT_EQ(RunPasses(config).kept - each, kLayers * kInputBytes);
  config.recompute_num_layers = 2;  // halves
  EXPECT_EQ(RunPasses(config).kept, each);
  config.recompute_num_layers = 4;
  EXPECT_EQ(RunPasses(config).kept, pairs);
  config.recompute_num_layers = 1;
  config.split_transformers = false;

  // Each layer that is not recomputed costs the same.
  config.recompute_method = "block";
  config.recompute_num_layers = 2;
  const int64_t half = RunPasses(config).kept;
  EXPECT_EQ(nothing_recomputed - half, half - each);
  config.recompute_num_layers = 9;  // more than there are
  EXPECT_EQ(RunPasses(config).kept, each);
}

// Only the weights of attention: b * heads * s * s, as probabilities, and after dropout.
TEST(RecomputeMemoryTest, SelectiveRecomputationKeepsNoAttentionWeights) {
  TrainConfig config = FourLayers();
  const int64_t nothing_recomputed = RunPasses(config).kept;
  config.recompute_granularity = "selective";
  EXPECT_GE(nothing_recomputed - RunPasses(config).kept, kLayers * 3 * 4 * 16 * 16 * 4);
}

}  // namespace
}  // namespace cairn
