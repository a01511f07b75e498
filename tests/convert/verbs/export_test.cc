#include "convert/verbs/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ckpt/families/expand.h"
#include "ckpt/families/families.h"
#include "ckpt/step/step_reader.h"
#include "convert/foreign/write_options.h"
#include "convert/formats/systems.h"
#include "convert/stream/fingerprint.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/long_form.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"

namespace cairn {
namespace {

std::unique_ptr<CheckpointSource> OpenStep(const std::string& run) {
  auto reader = StepReader::Open(Fs(), run + "/step-00000100");
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  return std::move(reader).value();
}

std::string FingerprintText(CheckpointSource& source) {
  const auto found = FingerprintOf(source);
  EXPECT_TRUE(found.ok()) << found.status().message();
  return ToHex(found->overall);
}

// A LLaMA of the same sizes: gated, two query heads a key and value head, no biases.
StepRecipe LlamaRecipe(const TinyGpt& m) {
  StepRecipe recipe;
  recipe.model = {{"architecture", "llama"},
                  {"num_layers", m.layers},
                  {"hidden_size", m.hidden},
                  {"num_attention_heads", 2 * m.heads},
                  {"num_key_value_heads", m.heads},
                  {"head_dim", 4},
                  {"ffn_hidden_size", 24},
                  {"vocab_size", m.vocab},
                  {"max_position_embeddings", m.positions},
                  {"tied_embeddings", m.tied},
                  {"layernorm_epsilon", 1e-6},
                  {"normalization", "RMSNorm"},
                  {"gated_mlp", true},
                  {"activation", "silu"},
                  {"position_embedding", "rope"},
                  {"rotary_base", 10000},
                  {"attention_bias", false},
                  {"mlp_bias", false}};
  auto expanded = Expand(*FindFamily("llama"), recipe.model);
  EXPECT_TRUE(expanded.ok()) << expanded.status().message();
  recipe.specs = std::move(expanded->parameters);
  return recipe;
}

// 16-bit weights are their masters rounded, as a trainer leaves them.
void MakeTrained(const std::string& run, const TinyGpt& model, Dtype weights, uint64_t seed) {
  StepRecipe recipe = seed % 2 == 0 ? RecipeOf(model, {}) : LlamaRecipe(model);
  recipe.weights = weights;
  recipe.seed = seed;
  recipe.packed = recipe.split_master = weights != Dtype::kF32;
  ASSERT_TRUE(MakeStep(Fs(), run, recipe).ok());
}

struct Target {
  const char* format;
  Dtype weights;  // universal checkpoints have fp32 values only
};

class ExportTest : public testing::TestWithParam<Target> {
 protected:
  Topology RandomTopology(int layers, std::mt19937& random) const {
    Topology t{.tp = 1 << random() % 3, .pp = 1, .dp = 1 + static_cast<int>(random() % 4)};
    const std::string_view format = GetParam().format;
    const bool deepspeed = format == "megatron-deepspeed";
    // ZeRO 3 stores only the masters of 16-bit weights.
    t.zero = deepspeed ? static_cast<int>(random() % (GetParam().weights == Dtype::kF32 ? 4 : 3)) : 0;
    const bool core = format == "torch-dist" || format == "megatron";
    if (core && GetParam().weights != Dtype::kF32) t.zero = static_cast<int>(random() % 2);
    if (t.zero < 2) t.pp = 1 + static_cast<int>(random() % layers);
    if (t.pp > 1 && random() % 3 == 0) {  // uneven
      t.layers_per_stage.assign(t.pp, 1);
      for (int left = layers - t.pp; left > 0; --left) ++t.layers_per_stage[random() % t.pp];
    }
    return t;
  }

  TempDir dir_{TempDir::Place::kMemory};
};

TEST_P(ExportTest, RandomTopologiesRoundTrip) {
  const System* format = FindSystem(GetParam().format);
  ASSERT_NE(format, nullptr);
  std::mt19937 random(11);
  const int rounds = IsLongForm() ? 500 : 10;
  for (int round = 0; round < rounds; ++round) {
    const TinyGpt model{.layers = 1 + static_cast<int>(random() % 4),
                        .vocab = 30 + random() % 40,
                        .tied = random() % 2 == 0,
                        .pad_multiple = 1 + random() % 8};
    const std::string run = dir_ / fmt::format("run{}", round), out = dir_ / fmt::format("out{}", round);
    MakeTrained(run, model, GetParam().weights, round);
    const auto source = OpenStep(run);
    const Topology topology = RandomTopology(model.layers, random);
    SCOPED_TRACE(ToString(topology));
    const auto result =
        Export(Fs(), *source, *format, out,
               {.target = {.topology = topology, .dtype = {}, .local_spec = round % 2 == 0}, .writer = {}});
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_TRUE(Fs().Stat(out + "/cairn.json").ok());
    auto written = OpenForeign(Fs(), out);  // recognised from its files
    ASSERT_TRUE(written.ok()) << written.status().message();
    ASSERT_EQ(FingerprintText(**written), FingerprintText(*source));
    EXPECT_EQ((*written)->manifest().step, 100);
    EXPECT_EQ(IntField((*written)->manifest().state, "consumed_samples"), 800);
    const Topology other{
        .tp = 1 << random() % 3, .pp = 1 + static_cast<int>(random() % model.layers), .dp = 2};
    const auto back =
        Reshape(Fs(), **written, dir_ / fmt::format("back{}", round), {.target = other, .writer = {}});
    ASSERT_TRUE(back.ok()) << back.status().message();
    ASSERT_EQ(ToHex(back->fingerprints.overall), FingerprintText(*source));
    std::filesystem::remove_all(run);
    std::filesystem::remove_all(out);
    std::filesystem::remove_all(dir_ / fmt::format("back{}", round));
  }
}

// Whatever fails, the directory is complete or does not exist.
TEST_P(ExportTest, AFailureLeavesNoPartialDirectory) {
  MakeTrained(dir_ / "run", {.layers = 1}, GetParam().weights, 1);
  FaultyFileSystem faulty(Fs());
  const auto attempt = [&](int64_t budget) {
    const std::string out = dir_ / fmt::format("out{}", budget);
    const auto source = OpenStep(dir_ / "run");
    faulty.SetBudget(budget);
    const auto result = Export(faulty, *source, *FindSystem(GetParam().format), out,
                               {.target = {.topology = {.tp = 2}, .dtype = {}}, .writer = {}});
    const bool there = Fs().Stat(out).ok();
    EXPECT_LE(result.ok(), there) << budget;
    if (!there) return false;
    EXPECT_EQ(FingerprintText(**OpenForeign(Fs(), out)), FingerprintText(*source)) << budget;
    return true;
  };
  ASSERT_TRUE(attempt(-1));
  const int64_t operations = faulty.operations();
  int absent = 0;
  for (int64_t budget = 0; budget < operations; budget += 1 + operations / 40)
    absent += !attempt(faulty.operations() + budget);
  EXPECT_GT(absent, 30);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, ExportTest,
    testing::Values(Target{"dcp", Dtype::kBF16}, Target{"dcp", Dtype::kF16}, Target{"megatron", Dtype::kBF16},
                    Target{"megatron-deepspeed", Dtype::kBF16}, Target{"megatron-deepspeed", Dtype::kF32},
                    Target{"torch-dist", Dtype::kBF16}, Target{"torch-dist", Dtype::kF32},
                    Target{"universal", Dtype::kF32}),
    [](const auto& info) {
      std::string name = fmt::format("{}_{}", info.param.format, Name(info.param.weights));
      std::ranges::replace(name, '-', '_');
      return name;
    });

class RefusalTest : public testing::Test {
 protected:
  std::string Refusal(const char* format, const TargetOptions& options,
                      StepRecipe recipe = RecipeOf({}, {})) {
    const std::string run = dir_ / fmt::format("run{}", runs_++);
    EXPECT_TRUE(MakeStep(Fs(), run, recipe).ok());
    const auto result =
        Export(Fs(), *OpenStep(run), *FindSystem(format), dir_ / "out", {.target = options, .writer = {}});
    EXPECT_FALSE(Fs().Stat(dir_ / "out").ok());
    return result.status().message();
  }
  TempDir dir_{TempDir::Place::kMemory};
  int runs_ = 0;
};

TEST_F(RefusalTest, FormatsRefuseUnsupportedState) {
  using testing::HasSubstr;
  const TargetOptions plain{.topology = {}, .dtype = {}};
  EXPECT_THAT(Refusal("megatron", {.topology = {.tp = 3}, .dtype = {}}), HasSubstr("TP=3 does not divide"));
  EXPECT_THAT(Refusal("megatron", {.topology = {.pp = 3}, .dtype = {}}), HasSubstr("layers"));
  EXPECT_THAT(Refusal("megatron", {.topology = {.zero = 2}, .dtype = {}}), HasSubstr("no ZeRO 2"));
  for (const char* format :
       {"megatron", "torch-dist"}) {  // their arguments name only the first and the last stage
    const auto six = [&](const Topology& topology) {
      return Refusal(format, {.topology = topology, .dtype = {}}, RecipeOf({.layers = 6}, {}));
    };
    EXPECT_THAT(six({.pp = 4}), HasSubstr("stages of 2, 2, 1, 1 layers")) << format;
    EXPECT_THAT(six({.pp = 2, .virtual_stages = 2}), HasSubstr("interleaved chunks")) << format;
  }
  EXPECT_THAT(Refusal("megatron-deepspeed", {.topology = {.pp = 2, .zero = 3}, .dtype = {}}),
              HasSubstr("no pipeline with ZeRO 3"));
  StepRecipe unknown = RecipeOf({}, {});
  unknown.specs.push_back({.name = "layers.0.router.weight", .shape = {4}, .layer = 0});
  EXPECT_THAT(Refusal("megatron", plain, unknown),
              HasSubstr("Megatron-Core describe this model: it would ignore layers.0.router.weight;"));
  StepRecipe bare = RecipeOf({}, {});
  bare.model = nlohmann::json::object();
  EXPECT_THAT(Refusal("megatron", plain, bare), HasSubstr("does not say which model it is"));
  EXPECT_THAT(Refusal("megatron-deepspeed", {.topology = {.tp = 2}, .dtype = {}}, bare),
              HasSubstr("--tp 1 --pp 1"));
  StepRecipe wide = RecipeOf({}, {});
  wide.weights = Dtype::kF32;
  EXPECT_THAT(Refusal("megatron", plain, wide), HasSubstr("--dtype bf16"));
}

TEST_F(RefusalTest, TorchDistRefusesUnsupportedState) {
  using testing::HasSubstr;
  const TargetOptions plain{.topology = {}, .dtype = {}};
  const TargetOptions distributed{.topology = {.zero = 1}, .dtype = {}};
  EXPECT_THAT(Refusal("torch-dist", {.topology = {.tp = 3}, .dtype = {}}), HasSubstr("TP=3 does not divide"));
  EXPECT_THAT(Refusal("torch-dist", {.topology = {.zero = 3}, .dtype = {}}),
              HasSubstr("no ZeRO 3; choose --zero 1"));
  StepRecipe wide = RecipeOf({}, {});
  wide.weights = Dtype::kF32;
  EXPECT_THAT(Refusal("torch-dist", distributed, wide), HasSubstr("choose --dtype bf16 or --zero 0"));
  StepRecipe normed = RecipeOf({}, {});
  normed.specs.push_back({.name = "embedding.norm.weight", .shape = {16}, .layer = kBeforeLayers});
  EXPECT_THAT(Refusal("torch-dist", plain, normed), HasSubstr("it would ignore embedding.norm.weight;"));
  StepRecipe uneven = RecipeOf({.layers = 2}, {});
  std::erase_if(uneven.specs, [](const ParameterSpec& s) { return s.name == "layers.1.mlp.down.bias"; });
  EXPECT_THAT(Refusal("torch-dist", plain, uneven), HasSubstr("it would ask for layers.1.mlp.down.bias;"));
}

TEST_F(RefusalTest, FormatsWithoutAPlaceForExpertsNameTheFirst) {
  const StepRecipe mixture = RecipeOf({.experts = 4}, {});
  for (const System& system : Systems()) {
    if (system.plan == nullptr || system.experts) continue;
    EXPECT_THAT(
        Refusal(system.name.data(), {}, mixture),
        testing::HasSubstr(fmt::format("layers.0.mlp.experts.gate.weight is of experts, which {} "
                                       "cannot hold yet; native, hf, dcp, torch-dist and safetensors can",
                                       system.name)));
  }
  EXPECT_THAT(Refusal("dcp", {.topology = {.dp = 2, .ep = 2}}), testing::HasSubstr("no experts"));
}

// A DCP has a file of each rank that holds some of the experts.
TEST(ExpertExportTest, CanonicalNamesHoldExpertsAtAnyTopology) {
  const TempDir dir(TempDir::Place::kMemory);
  const StepRecipe recipe = RecipeOf({.experts = 6, .expert_ffn = 8}, {.tp = 2, .pp = 2, .dp = 3, .ep = 3});
  ASSERT_TRUE(MakeStep(Fs(), dir / "run", recipe).ok());
  const auto source = OpenStep(dir / "run");
  for (const Topology& topology :
       {Topology{}, Topology{.tp = 2, .dp = 4, .ep = 4, .etp = 2}, Topology{.pp = 2, .dp = 3, .ep = 3}}) {
    const std::string out = dir / ToString(topology);
    const auto written =
        Export(Fs(), *source, *FindSystem("dcp"), out, {.target = {.topology = topology}, .writer = {}});
    ASSERT_TRUE(written.ok()) << written.status().message();
    const auto files = *Fs().List(out);
    EXPECT_EQ(std::ranges::count_if(files, [](const auto& name) { return name.ends_with(".distcp"); }),
              topology.world());
    const auto read = OpenForeign(Fs(), out);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(FingerprintText(**read), FingerprintText(*source));
    EXPECT_EQ((*read)->catalog().Parameters().size(), recipe.specs.size());
    for (const ParameterSpec& spec : (*read)->catalog().Parameters())
      EXPECT_NE(std::ranges::find(recipe.specs, spec), recipe.specs.end()) << spec.name;
  }
  const auto stripped = Strip(Fs(), *source, dir / "st", {.dtype = {}, .format = FindSystem("safetensors")});
  ASSERT_TRUE(stripped.ok()) << stripped.status().message();
  EXPECT_EQ((*OpenForeign(Fs(), dir / "st"))->catalog().Parameters(), source->catalog().Parameters());
}

// add_bias_linear stands for all biases of a layer, add_qkv_bias for those of query, key and value.
TEST_F(RefusalTest, MegatronRefusesModelsItsArgumentsCannotDescribe) {
  using testing::HasSubstr;
  const auto llama = [](bool attention, bool mlp) {
    StepRecipe recipe = LlamaRecipe({});
    recipe.model["attention_bias"] = attention;
    recipe.model["mlp_bias"] = mlp;
    recipe.specs = Expand(*FindFamily("llama"), recipe.model)->parameters;
    return recipe;
  };
  StepRecipe qwen = llama(true, false);
  std::erase_if(qwen.specs, [](const auto& s) { return s.name.ends_with("attention.output.bias"); });
  StepRecipe half_normed = llama(false, false);
  half_normed.specs.push_back({.name = "final_norm.bias", .shape = {16}, .layer = kAfterLayers});
  for (const char* format : {"megatron", "torch-dist", "megatron-deepspeed", "universal"}) {
    const bool core = std::string_view(format) == "megatron" || std::string_view(format) == "torch-dist";
    for (int zero = 0; zero < (core ? 2 : 4); ++zero) {
      SCOPED_TRACE(fmt::format("{} ZeRO {}", format, zero));
      const TargetOptions options{.topology = {.zero = zero}, .dtype = {}};
      EXPECT_THAT(Refusal(format, options, llama(true, false)), HasSubstr("layers.0.attention.output.bias"));
      EXPECT_THAT(Refusal(format, options, llama(false, true)),
                  HasSubstr("it would ask for layers.0.attention.key.bias, layers.0.attention.output.bias, "
                            "layers.0.attention.query.bias, layers.0.attention.value.bias and 4 more; "));
      EXPECT_THAT(Refusal(format, options, half_normed), HasSubstr("it would ignore final_norm.bias; "));
      if (core) continue;  // Megatron-DeepSpeed does not have add_qkv_bias
      EXPECT_THAT(Refusal(format, options, qwen), HasSubstr("layers.0.attention.query.bias"));
    }
  }
  const std::string run = dir_ / "qwen";
  ASSERT_TRUE(MakeStep(Fs(), run, qwen).ok());
  EXPECT_TRUE(FindSystem("torch-dist")->plan(*OpenStep(run), {}).ok());
}

}  // namespace
}  // namespace cairn
