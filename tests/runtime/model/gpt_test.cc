// The model against a reference: the same weights through libtorch's own operators and autograd, tensor by
// tensor.
#include "runtime/model/gpt.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <atomic>

#include "ckpt/model/canonical_modules.h"
#include "runtime/comm/nccl_backend.h"
#include "runtime/config/checkpoint_model.h"
#include "runtime/model/autograd/random_streams.h"
#include "runtime/model/gemm/gemm.h"
#include "runtime/model/layers/documents.h"
#include "runtime/model/norm/norm.h"
#include "runtime/model/parameters/flat_parameters.h"
#include "runtime/model/parameters/initialize.h"
#include "runtime/train/device_settings.h"
#include "runtime/train/optimizer.h"
#include "tests/support/gpu.h"
#include "tests/support/narrow_products.h"
#include "tests/support/reference_gpt.h"

namespace cairn {
namespace {

using at::Tensor;

constexpr double kTolerance = 2e-5;  // fp32, sums of up to 128 products; relative to the largest element

TrainConfig Small() {
  TrainConfig config;
  config.num_layers = 2;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.vocab_size = 101;  // padded to 128
  config.seq_length = 16;
  config.max_position_embeddings = 20;
  config.hidden_dropout = 0;
  config.attention_dropout = 0;
  config.init_method_std = 0.2;
  return config;
}

// A whole model on one rank.
struct Trained {
  explicit Trained(const TrainConfig& config, at::Device device = at::kCPU)
      : parameters(GptSpecs(config), *LayoutOf(GptSpecs(config), {}, 0), 1, config.dtype(), device),
        streams(device, config.seed, {}, 0),
        stage(config, dims, parameters, streams) {
    InitialValues(config, parameters, [&](const LocalParameter& local, const Tensor& values) {
      parameters.weights().narrow(0, local.flat_begin, values.numel()).copy_(values);
    });
  }

  double Run(const Tensor& tokens, const Tensor& labels, const Documents& documents = {}) {
    const at::Device device = parameters.weights().device();
    const Tensor loss = stage.Loss(stage.forward(tokens.to(device), true, documents), labels.to(device));
    torch::autograd::backward({loss}, {at::ones_like(loss)});
    return loss.item<double>();
  }

  ParallelDims dims;
  FlatParameters parameters;
  RandomStreams streams;
  GptStage stage;
};

Leaves MakeLeaves(Trained& model) {
  Leaves leaves;
  for (const ParameterSpec& spec : model.parameters.specs())
    leaves[spec.name] =
        model.parameters.View(spec.name).value().detach().cpu().to(at::kFloat).clone().requires_grad_();
  return leaves;
}

struct Batch {
  Tensor tokens;
  Tensor labels;
};

Documents DocumentsOf(const TrainConfig& config, const Tensor& tokens) {
  const Tensor begins = DocumentBegins(tokens, config.eod);
  Documents documents;
  if (config.reset_position_ids) documents.positions = at::arange(tokens.size(1), begins.options()) - begins;
  if (config.reset_attention_mask) documents.first_keys = begins;
  return documents;
}

Batch RandomBatch(const TrainConfig& config) {
  at::manual_seed(5);
  Tensor ids = at::randint(config.vocab_size, {3, config.seq_length + 1}, at::kLong);
  if (config.eod >= 0) ids = ids.masked_fill(ids.remainder(6).eq(0), config.eod);
  if (config.eod_mask_loss)
    return {ids.narrow(1, 0, config.seq_length).contiguous(),
            ids.narrow(1, 1, config.seq_length)
                .masked_fill(ids.narrow(1, 0, config.seq_length).lt(40), kNoLabel)};
  return {ids.narrow(1, 0, config.seq_length).contiguous(), ids.narrow(1, 1, config.seq_length).contiguous()};
}

void ExpectEqualToReference(const TrainConfig& config, double tolerance, at::Device device = at::kCPU) {
  Trained model(config, device);
  at::manual_seed(6);
  model.parameters.weights().add_(0.1 * at::randn_like(model.parameters.weights()));  // norms and biases, too
  const Batch batch = RandomBatch(config);
  const double loss = model.Run(batch.tokens, batch.labels, DocumentsOf(config, batch.tokens.to(device)));
  const Leaves leaves = MakeLeaves(model);
  const Tensor expected = ReferenceLoss(config, leaves, batch.tokens, batch.labels);
  expected.backward();
  EXPECT_NEAR(loss, expected.item<double>(), tolerance * expected.item<double>());
  for (const auto& [name, leaf] : leaves) {
    const Tensor grad = model.parameters.View(name).grad().cpu();
    const double scale =
        leaf.grad().abs().max().item<double>() + 1e-2;  // gradients of key biases are only noise
    EXPECT_LE((grad - leaf.grad()).abs().max().item<double>(), tolerance * scale) << name;
  }
}

TEST(GptTest, LossAndGradientsEqualPlainAutograd) { ExpectEqualToReference(Small(), kTolerance); }

// torch's own mean leaves out the same labels.
TEST(GptTest, MaskedLabelsDoNotCountInTheMean) {
  TrainConfig config = Small();
  config.eod_mask_loss = true;
  ExpectEqualToReference(config, kTolerance);
  Trained model(config);
  const Batch batch = RandomBatch(config);
  EXPECT_EQ(model.Run(batch.tokens, at::full_like(batch.labels, kNoLabel)), 0);
  EXPECT_EQ(model.parameters.grads().abs().max().item<double>(), 0);
}

TEST(GptTest, UntiedOutputLayerHasItsOwnGradient) {
  TrainConfig config = Small();
  config.untie_embeddings_and_output_weights = true;
  ExpectEqualToReference(config, kTolerance);
}

// RMSNorm, rotary positions, a gated MLP, shared key and value heads that are wider than hidden / heads.
TrainConfig LlamaLike() {
  TrainConfig config = Small();
  config.normalization = "RMSNorm";
  config.position_embedding_type = "rope";
  config.swiglu = config.disable_bias_linear = true;
  config.group_query_attention = true;
  config.num_query_groups = 2;
  config.kv_channels = 12;
  config.ffn_hidden_size = 48;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

TrainConfig Qwen3Like() {
  TrainConfig config = LlamaLike();
  config.qk_layernorm = config.add_qkv_bias = true;
  config.rotary_base = 1e6;
  return config;
}

TrainConfig BloomLike() {
  TrainConfig config = Small();
  config.position_embedding_type = "alibi";
  config.embed_layernorm = true;
  return config;
}

TrainConfig NeoXLike() {
  TrainConfig config = Small();
  config.position_embedding_type = "rope";
  config.rotary_percent = 0.25;
  config.gpt_j_residual = config.no_bias_gelu_fusion = true;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

// ReLU, and rarely used features.
TrainConfig OddOne() {
  TrainConfig config = Small();
  config.activation = "relu";
  config.embed_layernorm = config.apply_residual_connection_post_layernorm = true;
  return config;
}

TEST(GptTest, FamiliesEqualTheReference) {
  for (const auto& [name, config] :
       {std::pair("llama", LlamaLike()), std::pair("qwen3", Qwen3Like()), std::pair("bloom", BloomLike()),
        std::pair("gpt_neox", NeoXLike()), std::pair("odd", OddOne())}) {
    SCOPED_TRACE(name);
    ExpectEqualToReference(config, kTolerance);
    if (config.activation == "relu") continue;  // a step where rounding goes differently
    TrainConfig narrow = config;
    narrow.bf16 = true;
    ExpectEqualToReference(narrow, 0.08);
  }
}

TEST(GptTest, AWindowHidesOlderKeys) {
  TrainConfig config = LlamaLike();
  CheckpointModel model{.spec = *SpecOfFlags(config)};
  model.spec.window = 5;
  model.spec.windowed = {false, true};
  model.spec.attention_scale = 0.3;
  model.spec.attention_scale_by_layer = true;
  config.of_checkpoint = std::make_shared<const CheckpointModel>(model);
  ExpectEqualToReference(config, kTolerance);
  config.eod = 7;
  config.reset_attention_mask = true;
  ExpectEqualToReference(config, kTolerance);
}

TEST(GptTest, ResetPositionsAndAttentionEqualTheReference) {
  for (const auto& [name, family] : {std::pair("gpt", Small()), std::pair("llama", LlamaLike()),
                                     std::pair("bloom", BloomLike()), std::pair("gpt_neox", NeoXLike())})
    for (const auto& [positions, attention] :
         {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
      SCOPED_TRACE(fmt::format("{} {} {}", name, positions, attention));
      TrainConfig config = family;
      config.eod = 7;
      config.reset_position_ids = positions;
      config.reset_attention_mask = attention;
      ExpectEqualToReference(config, kTolerance);
      config.bf16 = true;
      ExpectEqualToReference(config, 0.08);
    }
}

// The loss is a mean over tokens: a document's weight is its number of tokens.
void ExpectEachDocumentIsAlone(TrainConfig config) {
  constexpr std::array<int64_t, 3> kLengths = {70, 1, 79};  // more than a tile of attention
  config.seq_length = config.max_position_embeddings = 150;
  config.eod = 7;
  config.reset_position_ids = config.reset_attention_mask = true;
  at::manual_seed(8);
  const Tensor ids = at::randint(8, config.vocab_size, {2, 151}, at::kLong);
  Tensor tokens = ids.narrow(1, 0, 150).contiguous();
  const Tensor labels = ids.narrow(1, 1, 150).contiguous();
  for (const int64_t end : {69, 70}) tokens.select(1, end).fill_(config.eod);
  Trained packed(config), alone(config);
  const double loss = packed.Run(tokens, labels, DocumentsOf(config, tokens));
  double sum = 0;
  Tensor grads = at::zeros_like(alone.parameters.grads());
  int64_t begin = 0;
  for (const int64_t length : kLengths) {
    alone.parameters.ZeroGrads();
    const double share = static_cast<double>(length) / 150;
    sum += share * alone.Run(tokens.narrow(1, begin, length).contiguous(),
                             labels.narrow(1, begin, length).contiguous());
    grads.add_(alone.parameters.grads(), share);
    begin += length;
  }
  EXPECT_NEAR(loss, sum, 1e-5);
  const double largest = grads.abs().max().item<double>();
  EXPECT_LT((packed.parameters.grads() - grads).abs().max().item<double>(), 1e-5 * largest);
}

void SelectiveRecompute(TrainConfig& c) { c.recompute_granularity = "selective"; }
void FullRecompute(TrainConfig& c) { c.recompute_granularity = "full"; }
void SplitRecompute(TrainConfig& c) { c.checkpoint_activations = c.split_transformers = true; }
void GroupedRecompute(TrainConfig& c) {
  c.checkpoint_activations = true;
  c.recompute_num_layers = 2;
}

TEST(GptTest, APackedSampleEqualsItsSeparateDocuments) {
  for (const auto& [name, config] :
       {std::pair("gpt", Small()), std::pair("llama", LlamaLike()), std::pair("bloom", BloomLike())}) {
    SCOPED_TRACE(name);
    ExpectEachDocumentIsAlone(config);
    for (auto* const recompute : {SelectiveRecompute, FullRecompute, SplitRecompute, GroupedRecompute}) {
      TrainConfig again = config;
      recompute(again);
      ExpectEachDocumentIsAlone(again);
    }
  }
}

TEST(GptTest, Bf16FollowsTheFp32ReferenceWithinItsPrecision) {
  TrainConfig config = Small();
  config.bf16 = true;
  ExpectEqualToReference(config, 0.06);
}

// Forward and backward, attention's too.
TEST(GptTest, CpusWithoutBf16ProductsComputeInFp32) {
  const WithoutOneDnn without;
  TrainConfig config = Small();
  config.bf16 = true;
  const CountedProducts counted;
  ExpectEqualToReference(config, 0.06);
  config.attention_dropout = 0.1;
  const Batch batch = RandomBatch(config);
  Trained(config).Run(batch.tokens, batch.labels);
  EXPECT_GT(counted.all(), 0);
  EXPECT_EQ(counted.bf16(), 0);
}

TEST(GptTest, Fp16FollowsTheFp32ReferenceWithinItsPrecision) {
  TrainConfig config = Small();
  config.fp16 = true;
  ExpectEqualToReference(config, 0.02);
}

// The gradients of the weights, by fp64 from the same 16-bit factors; rounding any of them to 16 bits costs
// 2e-3.
TEST(GradientTest, WeightGradientsAreNeverRoundedTo16Bits) {
  constexpr int64_t n = 96, in = 40, out = 24;
  at::manual_seed(3);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const Tensor x = at::randn({n, in}).to(type), dy = at::randn({n, out}).to(type);
    const Tensor grad = at::ones({out, in});
    AddLinearWeightGrad(grad, dy, x);
    const Tensor wanted = 1 + at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
    EXPECT_LT((grad - wanted).abs().max().item<double>(), 2e-5) << type;

    Parameter weight{at::randn({in}).to(type), at::ones({in})},
        bias{at::randn({in}).to(type), at::ones({in})};
    const Norm norm(Normalization::kLayerNorm, weight, bias, 1e-5);
    const Tensor leaf = x.detach().clone().requires_grad_();
    const Tensor down = at::randn({n, in}).to(type);
    torch::autograd::backward({norm.forward(leaf)}, {down});
    const Tensor wide = x.to(at::kDouble), wide_down = down.to(at::kDouble);
    const Tensor variance = wide.var({1}, /*unbiased=*/false, /*keepdim=*/true);
    const Tensor normal = (wide - wide.mean({1}, true)) / (variance + 1e-5).sqrt();
    EXPECT_LT((weight.grad() - 1 - (wide_down * normal).sum(0)).abs().max().item<double>(), 5e-5) << type;
    EXPECT_LT((bias.grad() - 1 - wide_down.sum(0)).abs().max().item<double>(), 2e-5) << type;
  }
}

// fp32 sums of 2^20 squares are 2e-5 too low.
TEST(OptimizerTest, TheNormOfALongGradientIsExact) {
  TrainConfig config = Small();
  config.vocab_size = 65536;  // times 32: 2^21 elements
  const ParallelDims dims;
  const FlatParameters parameters(GptSpecs(config), *LayoutOf(GptSpecs(config), {}, 0), 1, Dtype::kF32,
                                  at::kCPU);
  at::manual_seed(4);
  Tensor(parameters.grads()).normal_();
  const double wanted = parameters.grads().to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(Optimizer(config, parameters, dims).SquareSum() / wanted, 1, 1e-12);
}

TEST(GptTest, PaddingRowsGetNoGradient) {
  const TrainConfig config = Small();
  Trained model(config);
  const Batch batch = RandomBatch(config);
  model.Run(batch.tokens, batch.labels);
  const LocalParameter& word = model.parameters.Local("embedding.word.weight");
  const Tensor padding = model.parameters.grads().view({-1}).narrow(0, word.flat_begin + word.box.Volume(),
                                                                    word.shape.Volume() - word.box.Volume());
  EXPECT_GT(padding.numel(), 0);
  EXPECT_EQ(padding.abs().max().item<float>(), 0);
}

TEST(GptTest, RecomputationChangesNoBitEvenWithDropout) {
  TrainConfig config = Small();
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.1;
  const Batch batch = RandomBatch(config);
  Trained plain(config);
  const double loss = plain.Run(batch.tokens, batch.labels);
  const std::string after = plain.streams.SaveState();
  config.checkpoint_activations = true;
  Trained recomputed(config);
  EXPECT_EQ(recomputed.Run(batch.tokens, batch.labels), loss);
  EXPECT_TRUE(at::equal(plain.parameters.grads(), recomputed.parameters.grads()));
  EXPECT_EQ(recomputed.streams.SaveState(), after);
}

// In few tests, because under ctest each is a process that loads libtorch's CUDA libraries.
TEST(GptOnGpuTest, EqualsTheCpuAndIsDeterministic) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU here";
  UseDeterministicKernels();
  const at::Device gpu(at::kCUDA, NcclModule::Load(0)->device());
  TrainConfig config = Small();
  ExpectEqualToReference(config, kTolerance, gpu);
  config.untie_embeddings_and_output_weights = true;
  ExpectEqualToReference(config, kTolerance, gpu);
  TrainConfig by_document = LlamaLike();
  by_document.eod = 7;
  by_document.reset_position_ids = by_document.reset_attention_mask = true;
  ExpectEqualToReference(by_document, kTolerance, gpu);
  config.bf16 = true;
  ExpectEqualToReference(config, 0.06, gpu);
  config.bf16 = false;
  config.fp16 = true;
  ExpectEqualToReference(config, 0.02, gpu);

  config.bf16 = true;
  config.fp16 = false;
  config.hidden_dropout = config.attention_dropout = 0.1;
  config.seq_length = config.max_position_embeddings = 512;  // several blocks of flash attention
  const Batch batch = RandomBatch(config);
  Trained first(config, gpu);
  const double loss = first.Run(batch.tokens, batch.labels);
  const std::string after = first.streams.SaveState();
  for (const bool recompute : {false, true}) {
    config.checkpoint_activations = recompute;
    Trained again(config, gpu);
    EXPECT_EQ(again.Run(batch.tokens, batch.labels), loss) << recompute;
    EXPECT_TRUE(at::equal(first.parameters.grads(), again.parameters.grads())) << recompute;
    EXPECT_EQ(again.streams.SaveState(), after) << recompute;
  }
}

TEST(OptimizerOnGpuTest, NormAndUpdateEqualTheCpu) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU here";
  UseDeterministicKernels();
  const at::Device gpu(at::kCUDA, NcclModule::Load(0)->device());
  const ParallelDims dims;
  for (const bool bf16 : {false, true}) {
    TrainConfig config = Small();
    config.bf16 = bf16;
    const auto parameters_on = [&](at::Device device) {
      return FlatParameters(GptSpecs(config), *LayoutOf(GptSpecs(config), {}, 0), 1, config.dtype(), device);
    };
    const FlatParameters here = parameters_on(at::kCPU), there = parameters_on(gpu);
    Optimizer on_cpu(config, here, dims), on_gpu(config, there, dims);
    at::manual_seed(4);
    for (int step = 1; step <= 3; ++step) {
      Tensor(here.grads()).normal_();
      Tensor(there.grads()).copy_(here.grads());
      EXPECT_NEAR(on_gpu.SquareSum() / on_cpu.SquareSum(), 1, 1e-12);
      EXPECT_EQ(on_gpu.CountZeros(), on_cpu.CountZeros());
      on_cpu.Step({.lr = 1e-2, .grad_divisor = 3.5, .number = step});
      on_gpu.Step({.lr = 1e-2, .grad_divisor = 3.5, .number = step});
    }
    const Tensor wanted = here.weights().to(at::kFloat), got = there.weights().cpu().to(at::kFloat);
    const double tolerance = bf16 ? 0x1p-7 : 1e-5;
    EXPECT_LE((got - wanted).abs().max().item<double>(), tolerance * wanted.abs().max().item<double>())
        << bf16;
  }
}

TEST(RandomStreamsTest, TensorParallelRegionsDrawFromAnotherStream) {
  RandomStreams streams(at::kCPU, 1, {}, 0);
  const std::string state = streams.SaveState();
  const Tensor shared = at::rand({4});
  Tensor own;
  {
    const RandomStreams::ParallelRegion region(streams);
    own = at::rand({4});
  }
  EXPECT_FALSE(at::equal(shared, own));
  ASSERT_TRUE(streams.LoadState(state).ok());
  EXPECT_TRUE(at::equal(at::rand({4}), shared));
  const RandomStreams::ParallelRegion region(streams);
  EXPECT_TRUE(at::equal(at::rand({4}), own));
}

TEST(RandomStreamsTest, MalformedBytesAreCorrupt) {
  RandomStreams streams(at::kCPU, 1, {}, 0);
  EXPECT_EQ(streams.LoadState("x").kind(), StatusKind::kCorrupt);
}

// Compiled without OpenMP it is a loop, and large models take minutes to begin.
TEST(InitializeTest, ParallelForUsesSeveralThreads) {
  at::set_num_threads(2);
  std::atomic<int> threads = 0;
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(end - begin, 1);
    ++threads;
  });
  EXPECT_EQ(threads, 2);
}

TEST(InitializeTest, ValuesDoNotDependOnTheTopology) {
  const TrainConfig config = Small();
  const auto specs = GptSpecs(config);
  Trained whole(config);
  const Topology topology{.tp = 2};
  for (int tp = 0; tp < 2; ++tp) {
    FlatParameters part(specs, *LayoutOf(specs, topology, tp), 1, Dtype::kF32, at::kCPU);
    InitialValues(config, part, [&](const LocalParameter& local, const Tensor& values) {
      Tensor expected = whole.parameters.View(part.SpecOf(local).name).value();
      for (int d = 0; d < local.box.rank(); ++d)
        expected = expected.narrow(d, static_cast<int64_t>(local.box.offset[d]),
                                   static_cast<int64_t>(local.box.extent[d]));
      const Tensor mine = values.narrow(0, 0, static_cast<int64_t>(local.box.Volume()));
      EXPECT_TRUE(at::equal(mine, expected.reshape({-1}))) << part.SpecOf(local).name;
    });
  }
}

TEST(InitializeTest, NumbersAreStandardNormal) {
  double sum = 0, squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = NormalAt(7, i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.015);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
}

}  // namespace
}  // namespace cairn
