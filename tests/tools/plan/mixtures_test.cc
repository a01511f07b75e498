// Mixtures of experts and latent attention in the planner, against published counts and runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ckpt/families/hugging_face_config.h"
#include "tools/plan/formulas.h"
#include "tools/plan/run_setup.h"
#include "tools/plan/sbatch.h"
#include "tools/plan/search.h"
#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

using testing::Contains;
using testing::HasSubstr;

ModelShape ShapeOf(const char* config) {
  const auto shape = ShapeOfConfig(nlohmann::json::parse(config));
  EXPECT_TRUE(shape.ok()) << shape.status().message();
  ModelShape planned = *shape;
  planned.seq = 4096;
  return planned;
}

const ModelShape& Qwen30B() {
  static const ModelShape shape = ShapeOf(R"({
      "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768,
      "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960})");
  return shape;
}
const ModelShape& Qwen235B() {
  static const ModelShape shape = ShapeOf(R"({
      "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 94,
      "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 1536,
      "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960})");
  return shape;
}
const ModelShape& DeepSeekV3() {
  static const ModelShape shape = ShapeOf(R"({
      "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
      "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128,
      "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8, "q_lora_rank": 1536,
      "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
      "first_k_dense_replace": 3, "vocab_size": 129280, "max_position_embeddings": 163840})");
  return shape;
}

// Megatron Bridge's tables (docs/performance-summary-archive.md, 25.11 and 26.02) have the tokens and the
// operations of a second and GPU, both rounded; DeepSeek-V3 without multi-token prediction.
TEST(MixturesTest, OperationsOfATokenAreThePublishedOnes) {
  struct Row {
    const ModelShape& shape;
    double tflops, tokens;
  };
  for (const auto& [shape, tflops, tokens] :
       {Row{Qwen30B(), 699, 30376}, Row{Qwen235B(), 974, 6583}, Row{DeepSeekV3(), 961, 3848}}) {
    const double operations = StepFlops(shape, 1, 1, Recomputation::kNone, kCausalPairs).model / 4096;
    EXPECT_NEAR(operations / (tflops * 1e12 / tokens), 1, 0.004);
  }
}

struct PublishedRun {
  const char* name;
  const ModelShape& shape;
  RunSetup setup;
  double tokens;  // a second and GPU
};

RunSetup SetupOf(int64_t gpus, int64_t tp, int64_t pp, int64_t chunks, int64_t ep, int64_t batch,
                 int64_t micro_batch, Precision precision) {
  RunSetup setup{.gpus = gpus,
                 .tp = tp,
                 .pp = pp,
                 .dp = gpus / tp / pp,
                 .virtual_stages = chunks,
                 .micro_batch = micro_batch,
                 .global_batch = batch,
                 .zero = 1,
                 .recompute = Recomputation::kNone,
                 .precision = precision,
                 .program = Program::kMegatronLm};
  setup.sequence_parallel = tp > 1;
  setup.flash_attention = true;
  setup.ep = ep;
  return setup;
}

// Bridge's runs on H100, in FP8 and without dropped tokens unless said; their recomputation is not published.
// That of Qwen3 30B is half as fast as with dropped tokens, which nothing here explains.
TEST(MixturesTest, PublishedRunsLieWithinTheBounds) {
  const auto fp8 = [](auto... sizes) { return SetupOf(sizes..., Precision::kFp8); };
  const PublishedRun runs[] = {
      {"Qwen3 30B, 25.09, dropped tokens", Qwen30B(), fp8(16, 1, 2, 24, 8, 512, 2), 10494},
      {"Qwen3 30B, 25.11", Qwen30B(), fp8(16, 1, 2, 24, 8, 512, 2), 5275},
      {"Qwen3 30B, 26.02", Qwen30B(), fp8(16, 1, 2, 12, 8, 1024, 1), 5113},
      {"Qwen3 235B, 25.11", Qwen235B(), fp8(256, 2, 8, 4, 32, 2048, 1), 1575},
      {"Qwen3 235B, 26.02", Qwen235B(), fp8(256, 2, 8, 4, 32, 8192, 1), 1633},
      {"DeepSeek-V3, 25.09", DeepSeekV3(), fp8(1024, 2, 8, 4, 64, 8192, 1), 1297},
      // Its own report (arXiv 2412.19437): 180,000 hours of H800 for 10^12 tokens. Its program hides the
      // all-to-all.
      {"DeepSeek-V3, its report", DeepSeekV3(), fp8(2048, 1, 16, 1, 64, 15360, 1), 1543}};
  const Cluster cluster = *FindCluster("h100");
  const Calibration calibration = *BuiltInCalibration(cluster, Program::kMegatronLm);
  for (const PublishedRun& run : runs) {
    const Prediction p = Predict(run.shape, run.setup, cluster, calibration);
    const double measured =
        static_cast<double>(run.setup.global_batch * 4096) / (run.tokens * run.setup.gpus);
    fmt::print("{}: measured {:.2f} s, predicted {:.2f} s, {:+.0f} % ({:.2f} to {:.2f})\n", run.name,
               measured, p.seconds.value, 100 * (p.seconds.value / measured - 1), p.seconds.low,
               p.seconds.high);
    EXPECT_LT(p.seconds.low, measured) << run.name;
    EXPECT_GT(p.seconds.high, measured) << run.name;
  }
}

// DeepSeek-V3's experts are 58 layers of 256 times three matrices of 7168 by 2048.
TEST(MixturesTest, ExpertsAreDividedByTheirOwnRanks) {
  const ModelShape& shape = DeepSeekV3();
  RunSetup setup = SetupOf(2048, 2, 16, 1, 64, 15360, 1, Precision::kBf16);
  setup.etp = 2;
  EXPECT_EQ(setup.ExpertReplicas(), 1);
  setup.etp = 1;
  EXPECT_EQ(setup.ExpertReplicas(), 2);
  const RankParams all = ParamsOfRank(shape, 0, 61, setup);
  const double experts = 58 * 256 * 3 * 7168.0 * 2048;
  EXPECT_DOUBLE_EQ(all.experts, experts / 64);
  // Router and down projections are whole on each rank.
  const double whole = 58 * 256 * 7168.0 + 61 * 7168.0 * (1536 + 512 + 64);
  EXPECT_DOUBLE_EQ(all.dense, (61 * shape.LayerParams() - experts - whole) / 2 + whole);
  MemoryConstants constants;
  for (const auto& info : MemoryConstantInfos()) constants.*info.field = 1;
  const StageMemory middle = MemoryOf(shape, setup, constants).middle;  // four layers, all of them mixtures
  const RankParams stage = ParamsOfRank(shape, 4, 4, setup);
  EXPECT_NEAR(middle.parameters, 2 * (stage.dense + stage.experts) / 1e9, 1e-9);
  EXPECT_NEAR(middle.optimizer, 12 * (stage.dense / 64 + stage.experts / 2) / 1e9, 1e-9);
}

TEST(MixturesTest, TokensCrossTheNetworkOnceForEachOtherNode) {
  const Cluster cluster = *FindCluster("h100");
  const double bytes = 4 * 2 * 2048.0 * 4096;  // there and back, forward and backward; bf16, hidden, tokens
  const auto of = [&](int64_t ep, int64_t tp = 1, int64_t etp = 1) {
    RunSetup setup = SetupOf(32, tp, 1, 1, ep, 32, 1, Precision::kBf16);
    setup.etp = etp;
    return WorkOf(Qwen30B(), setup, cluster).dispatch;
  };
  EXPECT_EQ(of(1).link, 0);
  EXPECT_NEAR(of(8).link, bytes * 8 * 7 / 8 / 450e9, 1e-12);
  EXPECT_EQ(of(8).network, 0);
  EXPECT_NEAR(of(32).link, bytes * 8 * 31 / 32 / 450e9, 1e-12);
  EXPECT_NEAR(of(32).network, bytes * 3 * (1 - std::pow(0.75, 8)) * 8 / 400e9, 1e-12);
  EXPECT_NEAR(of(4, 2, 2).link, bytes / 2 * 8 * (3.0 / 4 + 1) / 450e9, 1e-12);
  EXPECT_EQ(of(4, 2, 2).network, 0);
}

class MixtureSearchTest : public testing::Test {
 protected:
  MixtureSearchTest() {
    request_.shape = Qwen30B();
    request_.cluster = *FindCluster("h100");
    request_.nodes = 2;
    request_.setup.global_batch = 512;
    request_.setup.program = Program::kMegatronLm;
    request_.setup.flash_attention = true;
  }
  Result<SearchResult> Found() {
    return Search(request_, *BuiltInCalibration(request_.cluster, request_.setup.program), 1000);
  }
  PlanRequest request_;
};

TEST_F(MixtureSearchTest, EveryPlanCutsExpertsEvenly) {
  const auto found = Found();
  ASSERT_TRUE(found.ok()) << found.status().message();
  std::set<int64_t> seen;
  for (const Candidate& c : found->best) {
    const RunSetup& s = c.setup;
    EXPECT_EQ(128 % s.ep, 0);
    EXPECT_EQ(s.tp * s.dp % (s.ep * s.etp), 0);
    EXPECT_TRUE(s.tp == 1 || s.sequence_parallel);
    seen.insert(s.ep);
  }
  EXPECT_GT(seen.size(), 2u);
  EXPECT_GT(found->best.at(0).setup.ep, 1);
  const auto flags = LaunchFlags(request_.shape, found->best.at(0).setup);
  EXPECT_THAT(flags, Contains(HasSubstr("--expert-model-parallel-size ")));
  request_.ep = {3};
  EXPECT_EQ(Found()->kept, 0);
}

TEST_F(MixtureSearchTest, NamesMissingSizesAndOtherPrograms) {
  request_.setup.program = Program::kCairn;
  EXPECT_THAT(Found().status().message(), HasSubstr("--framework megatron-lm"));
  request_.setup.program = Program::kMegatronLm;
  request_.shape.experts_per_token = 0;
  EXPECT_THAT(Found().status().message(), HasSubstr("num_experts_per_tok"));
  request_.shape = {.layers = 4, .hidden = 256, .heads = 4, .vocab = 1000};
  request_.ep = {2};
  EXPECT_THAT(Found().status().message(), HasSubstr("no experts"));
}

}  // namespace
}  // namespace cairn
