#include "ckpt/families/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "ckpt/families/expand.h"
#include "ckpt/families/family.h"
#include "ckpt/families/family_reader.h"
#include "ckpt/families/foreign_model.h"
#include "ckpt/families/hugging_face_config.h"
#include "tests/support/make_step.h"
#include "tests/support/random_config.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Boxes of tensors as a catalog, whose own check finds holes and overlaps.
class Cover {
 public:
  void AddTensor(const std::string& name, const Dims& shape) {
    index_[name] = static_cast<uint32_t>(catalog_.tensors.size());
    catalog_.tensors.push_back({{.name = name, .shape = shape}, Role::kWeight, Dtype::kF16});
  }
  void AddBox(const std::string& name, const Box& box) {
    catalog_.pieces.push_back({.tensor = index_.at(name),
                               .box = box,
                               .range = {0, box.Volume()},
                               .stored_bytes = box.Volume() * 2});
  }
  Status Check() {
    catalog_.files = {"file"};
    catalog_.SortPieces();
    return CheckCoverage(catalog_);
  }

 private:
  std::map<std::string, uint32_t> index_;
  Catalog catalog_;
};

class ArchitectureTest : public testing::TestWithParam<Family> {
 protected:
  json RandomModel() {
    const auto model = ModelOfConfig(GetParam(), RandomConfig(GetParam(), rng_));
    EXPECT_TRUE(model.ok()) << model.status().message();
    return *model;
  }
  std::mt19937_64 rng_{20261121};
};

TEST_P(ArchitectureTest, EveryElementIsStoredOnceAndUsedOnce) {
  for (int round = 0; round < 100; ++round) {
    const auto expanded = Expand(GetParam(), RandomModel());
    ASSERT_TRUE(expanded.ok()) << expanded.status().message();
    Cover stored, used;
    for (const ParameterSpec& spec : expanded->parameters) used.AddTensor(spec.name, spec.shape);
    for (const ForeignTensor& tensor : expanded->tensors) {
      stored.AddTensor(tensor.name, tensor.seen_shape());
      EXPECT_EQ(tensor.seen_shape().Volume(), tensor.shape.Volume());
      for (const ForeignPart& part : tensor.parts) {
        stored.AddBox(tensor.name, part.in_array);
        used.AddBox(part.parameter, part.box);
      }
    }
    ASSERT_TRUE(stored.Check().ok()) << stored.Check().message();
    ASSERT_TRUE(used.Check().ok()) << used.Check().message();
    const Status fits = CheckAgainst({expanded->tensors, {}}, expanded->parameters);
    ASSERT_TRUE(fits.ok()) << fits.message();
  }
}

TEST_P(ArchitectureTest, CutsFallBetweenHeads) {
  for (int round = 0; round < 30; ++round) {
    json model = RandomModel();
    for (const char* width : {"ffn_hidden_size", "moe_ffn_hidden_size", "shared_expert_ffn_hidden_size"})
      model[width] = 42;  // any divisor of the heads divides it
    const ModelShape shape = *ReadShape(model);
    const auto specs = Expand(GetParam(), model)->parameters;
    for (int tp = 1; tp <= 3; ++tp) {
      const bool latent = shape.key_value_rank > 0;  // keys and values of all heads
      const bool fits = (latent || shape.kv_heads % tp == 0) && shape.heads % tp == 0;
      for (int rank = 0; rank < tp; ++rank) {
        const auto layout = LayoutOf(specs, {.tp = tp, .pp = static_cast<int>(shape.layers)}, rank);
        ASSERT_EQ(layout.ok(), fits) << layout.status().message();
        for (size_t i = 0; fits && i < layout->parameters.size(); ++i) {
          const Box& box = layout->parameters[i].box;
          const std::string& name = specs[layout->parameters[i].index].name;
          if (name.find("attention.query.") == std::string::npos) continue;
          EXPECT_EQ(box.extent[0], static_cast<uint64_t>(shape.heads / tp * shape.head_dim));
        }
      }
    }
  }
}

TEST_P(ArchitectureTest, ConfigurationsRoundTrip) {
  for (int round = 0; round < 30; ++round) {
    const json config = RandomConfig(GetParam(), rng_);
    json model = *ModelOfConfig(GetParam(), config);
    model["hugging_face"] = {{"config", config}};
    const auto back = ConfigOfModel(GetParam(), model, Dtype::kBF16);
    ASSERT_TRUE(back.ok()) << back.status().message();
    for (const auto& [key, value] : config.items())
      EXPECT_EQ(back->value(key, json("missing")), value) << key;
    EXPECT_EQ((*back)["torch_dtype"], "bfloat16");

    // Without the file, the model gives the same configuration, except keys that have no field.
    EXPECT_TRUE(model["other"].contains("config.unknown_field"));
    model.erase("hugging_face");
    model.erase("other");
    json again = *ModelOfConfig(GetParam(), *ConfigOfModel(GetParam(), model, Dtype::kBF16));
    EXPECT_EQ(again, model);
    Model held = *HeldBy(GetParam(), model);
    held.architecture = GetParam().name;
    held.rest["function"] = kFunctionVersion;
    EXPECT_EQ(json(held), again);
  }
}

TEST_P(ArchitectureTest, ChangedFieldsWinOverTheKeptConfiguration) {
  const json config = RandomConfig(GetParam(), rng_);
  json model = *ModelOfConfig(GetParam(), config);
  model["hugging_face"] = {{"config", config}};
  model["vocab_size"] = 1234;
  EXPECT_EQ((*ConfigOfModel(GetParam(), model, Dtype::kF32))["vocab_size"], 1234);
}

INSTANTIATE_TEST_SUITE_P(All, ArchitectureTest, testing::ValuesIn(AllAndOneMore()),
                         [](const auto& family) { return family.param.name; });

TEST(FamiliesTest, ADerivedFamilyRemovesChangesAndAddsRows) {
  const std::vector<Family> all = AllAndOneMore();
  const Family &stablelm = all.back(), &llama = *FindFamily("llama");
  EXPECT_EQ(stablelm.name, "stablelm");
  ASSERT_EQ(stablelm.modules.size(), llama.modules.size());
  EXPECT_EQ(stablelm.modules[1].bias, "query_key_value_bias");
  EXPECT_EQ(stablelm.modules[1].canonical, llama.modules[1].canonical);
  EXPECT_EQ(stablelm.modules[4].bias, kNever);  // o_proj, whose condition was dropped
  EXPECT_EQ(std::ranges::count(stablelm.fields, "mlp_bias", &Field::name), 0);
  EXPECT_EQ(stablelm.fields.size(), llama.fields.size() - 3 + 2);
  EXPECT_EQ(stablelm.model.rotary_base, 10000);
  EXPECT_EQ(stablelm.model.normalization, "LayerNorm");
  EXPECT_EQ(stablelm.buffers, llama.buffers);
}

// kStableLm with one change; `at` is a JSON pointer.
std::string ErrorOf(const std::string& at, const json& value) {
  json content = json::parse(kStableLm);
  content[json::json_pointer(at)] = value;
  Families families = Families::BuiltIn();
  const Status status = families.Add({{"mine.json", content}});
  EXPECT_EQ(families.all().size(), KnownFamilies().size()) << at;  // nothing was added
  EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument) << at;
  return status.message();
}

TEST(FamiliesTest, ErrorsNameTheFileAndTheKey) {
  struct Bad {
    const char* at;
    json value;
    const char* message;
  };
  for (const auto& [at, value, message] : std::vector<Bad>{
           {"/base_prefx", "x.", "mine.json: unknown key 'base_prefx'; did you mean 'base_prefix'?"},
           {"/class", nullptr, "mine.json: class is missing; it must be a text"},
           {"/name", "opt",
            "mine.json: the family opt is already in the built-in opt.json; remove this file"},
           {"/like", "lama", "mine.json: like is \"lama\", which is not a known family"},
           {"/like", "stablelm", "mine.json: it is like stablelm, which is like it"},
           {"/without/0", "attn_bias",
            "mine.json: without 'attn_bias', which is not a module or field of llama"},
           {"/rope", false, "mine.json: rope is false, so model.position_embedding must not be \"rope\""},
           {"/rope_also", {{"theta", "x"}}, "mine.json: rope_also: unknown key 'theta'"},
           {"/model/activatoin", "silu", "mine.json: model: activatoin: it decides neither on tensors nor"},
           {"/modules", "all", "mine.json: modules is \"all\"; it must be a list of objects"},
           {"/modules/5/bais", "always", "the module model.norm: unknown key 'bais'; did you mean 'bias'?"},
           {"/modules/5/bias", "qkv_bias",
            "the module model.norm: bias depends on 'qkv_bias', which is not a field"},
           {"/modules/5/name", "model.nrm", "the module model.nrm: canonical is missing"},
           {"/modules/5/canonical", "last_norm",
            "the module model.norm: 'last_norm' is not a canonical module"},
           {"/modules/5/canonical", "input_norm", "'input_norm' is in each layer, so the name must have {}"},
           {"/modules/5/canonical", "output", "the module lm_head: 'output' is in another module, too"},
           {"/modules/5/before", "lm_head",
            "\"model.norm\" cannot be before \"lm_head\": its place is already fixed"},
           {"/modules/5/layout", "rows",
            "layout is 'rows'; it must be one of stacked, transposed, alternating, grouped"},
           {"/modules/0/groups", "heads", "groups is 'heads'; it must be one of num_key_value_heads"},
           {"/modules/5/layout", "grouped", "'final_norm' has no heads to group by num_key_value_heads"},
           {"/modules/5/when", "linear_attention",
            "when depends on 'linear_attention', which is not a field"},
           {"/modules/5/suffixes", "",
            "the module model.norm: suffixes must be two: of the weight and of the bias"},
           {"/modules/5/suffixes", {"", ""}, "mine.json: the tensor model.norm occurs twice"},
           {"/modules/0/canonical", {"attention.query", "attention.output"}, "have rows of different sizes"},
           {"/fields/1/config", json::array(), "the field query_key_value_bias: config is missing"},
           {"/fields/1/fallback", "no", "bias depends on 'query_key_value_bias', which is not a field"},
           {"/fields/0/model", "norm_epsilon", "the field norm_epsilon: it decides neither on tensors nor"},
           {"/without/2", "vocab_size", "mine.json: fields have no vocab_size"},
           {"/refusals/0/same_as", "x", "the refusal qk_layernorm: it needs either 'only' or 'same_as'"},
       })
    EXPECT_THAT(ErrorOf(at, value), HasSubstr(message)) << at;
}

TEST(FamiliesTest, NamesWithoutASuffixStayAsTheyAre) {
  json content = json::parse(kStableLm);
  content["modules"][5]["suffixes"] = {"", "_bias"};
  Families families = Families::BuiltIn();
  ASSERT_TRUE(families.Add({{"mine.json", content}}).ok());
  const Family& mine = families.all().back();
  std::mt19937_64 rng(1);
  const auto model = ModelOfConfig(mine, RandomConfig(mine, rng));
  const auto expanded = Expand(mine, *model);
  std::set<std::string> names;
  for (const ForeignTensor& tensor : expanded->tensors) names.insert(tensor.name);
  EXPECT_TRUE(names.contains("model.norm") && names.contains("model.norm_bias"));
  EXPECT_FALSE(names.contains("model.norm.weight") || names.contains("model.norm.bias"));
}

// As the experts of transformers 5, of Llama-4 and of a bias: [experts, 2 ffn, hidden], [experts, hidden, 2
// ffn] and [experts, 2 ffn].
std::vector<std::string> NamesOf(const std::vector<ForeignTensor>& tensors, std::string_view within) {
  std::vector<std::string> names;
  for (const ForeignTensor& tensor : tensors)
    if (tensor.name.find(within) != std::string::npos) names.push_back(tensor.name);
  return names;
}

json SmallMixture(const char* family) {
  return *ModelOfConfig(*FindFamily(family), {{"num_hidden_layers", 3},
                                              {"hidden_size", 6},
                                              {"num_attention_heads", 2},
                                              {"num_key_value_heads", 1},
                                              {"num_experts", 2},
                                              {"num_local_experts", 2},
                                              {"intermediate_size", 5},
                                              {"moe_intermediate_size", 5},
                                              {"shared_expert_intermediate_size", 4},
                                              {"vocab_size", 7},
                                              {"mlp_only_layers", {0}},
                                              {"decoder_sparse_step", 2}});
}

TEST(MixtureTest, EachExpertIsATensorOfItsOwnInFiles) {
  const auto mixtral = Expand(*FindFamily("mixtral"), SmallMixture("mixtral"));
  const std::string moe = "model.layers.1.block_sparse_moe.";
  EXPECT_THAT(NamesOf(mixtral->tensors, moe),
              ElementsAre(moe + "gate.weight", moe + "experts.0.w1.weight", moe + "experts.0.w2.weight",
                          moe + "experts.0.w3.weight", moe + "experts.1.w1.weight",
                          moe + "experts.1.w2.weight", moe + "experts.1.w3.weight"));
  const auto down = std::ranges::find(mixtral->tensors, moe + "experts.1.w2.weight", &ForeignTensor::name);
  EXPECT_EQ(down->shape, (Dims{6, 5}));
  ASSERT_EQ(down->parts.size(), 1U);
  EXPECT_EQ(down->parts[0].parameter, "layers.1.mlp.experts.down.weight");
  EXPECT_EQ(down->parts[0].box, (Box{{1, 0, 0}, {1, 6, 5}}));
  EXPECT_EQ(down->parts[0].in_array, (Box{{0, 0}, {6, 5}}));
}

TEST(MixtureTest, StateDictsHaveAllExpertsInOneTensor) {
  const auto mixtral = Expand(*FindFamily("mixtral"), SmallMixture("mixtral"), StoredForm::kMemory);
  const std::string moe = "model.layers.1.mlp.";
  EXPECT_THAT(NamesOf(mixtral->tensors, moe),
              ElementsAre(moe + "gate.weight", moe + "experts.gate_up_proj", moe + "experts.down_proj"));
  const auto both = std::ranges::find(mixtral->tensors, moe + "experts.gate_up_proj", &ForeignTensor::name);
  EXPECT_EQ(both->shape, (Dims{2, 10, 6}));
  ASSERT_EQ(both->parts.size(), 2U);
  EXPECT_EQ(both->parts[1].parameter, "layers.1.mlp.experts.up.weight");
  EXPECT_EQ(both->parts[1].in_array, (Box{{0, 5, 0}, {2, 5, 6}}));
}

TEST(MixtureTest, SomeLayersAreDense) {
  const json model = SmallMixture("qwen2_moe");
  EXPECT_EQ(model["dense_layers"], (json{0, 2})) << "every second layer is a mixture";
  const auto expanded = Expand(*FindFamily("qwen2_moe"), model);
  EXPECT_THAT(NamesOf(expanded->tensors, "layers.0.mlp."),
              ElementsAre("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                          "model.layers.0.mlp.down_proj.weight"));
  EXPECT_EQ(NamesOf(expanded->tensors, "layers.1.mlp.").size(), 1U + 2 * 3 + 3 + 1);
  const DecoderModules modules = *ModulesOf(*FindFamily("qwen2_moe"), model);
  EXPECT_FALSE(modules.layer(0).Has("mlp.router"));
  EXPECT_TRUE(modules.layer(1).Has("mlp.experts.down"));
  EXPECT_FALSE(modules.layer(1).Has("mlp.down"));
}

TEST(MixtureTest, ALayersSizesAreBounded) {
  json model = SmallMixture("mixtral");
  model["num_experts"] = 1 << 23;
  EXPECT_THAT(Expand(*FindFamily("mixtral"), model).status().message(), HasSubstr("8388608 experts"));
  model.erase("num_experts");
  EXPECT_THAT(Expand(*FindFamily("mixtral"), model).status().message(), HasSubstr("num_experts is missing"));
}

TEST(MixersTest, ALayerHasTheModulesOfItsType) {
  json config = {{"model_type", "qwen3_next"},   {"num_hidden_layers", 3}, {"hidden_size", 6},
                 {"num_attention_heads", 2},     {"vocab_size", 7},        {"intermediate_size", 5},
                 {"full_attention_interval", 2}, {"num_experts", 2},       {"linear_num_key_heads", 2},
                 {"max_position_embeddings", 16}};
  const Family& family = *FindFamily("qwen3_next");
  const Result<Model> model = ModelOfConfig(family, config);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(FunctionOf(*model).layer_types, (json{"linear_attention", "full_attention", "linear_attention"}));
  const DecoderModules modules = *ModulesOf(family, *model);
  for (const uint64_t layer : {0, 1, 2}) {
    EXPECT_EQ(modules.layer(layer).Has("delta_net.output"), layer != 1);
    EXPECT_EQ(modules.layer(layer).Has("attention.gate"), layer == 1);
    EXPECT_TRUE(modules.layer(layer).Has("mlp.experts.up"));
  }
  EXPECT_THAT(ShapeOfConfig(config).status().message(), HasSubstr("gated delta nets are not counted yet"));
  config["linear_num_key_heads"] = 3;
  EXPECT_THAT(ModelOfConfig(family, config).status().message(),
              HasSubstr("3 key heads of gated delta nets do not divide its 32 value heads"));
  config["linear_num_key_heads"] = config["linear_num_value_heads"] = int64_t{1} << 30;
  EXPECT_THAT(ModelOfConfig(family, config).status().message(), HasSubstr("is its description damaged?"));
}

TEST(StoredTensorTest, RowsOfExpertsAreFusedInEachExpert) {
  const std::vector<ParameterSpec> weights = {{.name = "gate", .shape = {4, 6, 8}, .of_experts = true},
                                              {.name = "up", .shape = {4, 6, 8}, .of_experts = true}};
  const ForeignTensor fused = StoredTensor("w", weights, Packing::kStacked, 1);
  EXPECT_EQ(fused.shape, (Dims{4, 12, 8}));
  EXPECT_EQ(fused.parts[1].in_array, (Box{{0, 6, 0}, {4, 6, 8}}));
  const ForeignTensor transposed = StoredTensor("w", weights, Packing::kTransposed, 1);
  EXPECT_EQ(transposed.shape, (Dims{4, 8, 12}));
  EXPECT_EQ(transposed.parts[1].in_array, (Box{{0, 0, 6}, {4, 8, 6}}));
  EXPECT_EQ(transposed.parts[1].axes, kLastTwoSwapped);
  for (const ForeignTensor& tensor : {fused, transposed})
    EXPECT_TRUE(CheckAgainst({{tensor}, {}}, weights).ok()) << ToString(tensor.shape);
  const std::vector<ParameterSpec> biases = {{.name = "gate", .shape = {4, 6}, .of_experts = true},
                                             {.name = "up", .shape = {4, 6}, .of_experts = true}};
  const ForeignTensor bias = StoredTensor("b", biases, Packing::kTransposed, 1);
  EXPECT_EQ(bias.shape, (Dims{4, 12})) << "a stack of vectors is not transposed";
  EXPECT_EQ(bias.parts[1].in_array, (Box{{0, 6}, {4, 6}}));
  const ForeignTensor turns = StoredTensor("w", weights, Packing::kAlternating, 1);
  EXPECT_EQ(turns.shape, (Dims{4, 8, 12}));
  EXPECT_EQ(turns.seen, (Dims{4, 8, 6, 2}));
  EXPECT_EQ(turns.parts[1].ToArray({{2, 5, 3}, {1, 1, 1}}), (Box{{2, 3, 5, 1}, {1, 1, 1, 1}}));
  EXPECT_TRUE(CheckAgainst({{turns}, {}}, weights).ok());
  const ForeignTensor bias_turns = StoredTensor("b", biases, Packing::kAlternating, 1);
  EXPECT_EQ(bias_turns.shape, (Dims{4, 12}));
  EXPECT_EQ(bias_turns.parts[1].ToArray({{2, 5}, {1, 1}}), (Box{{2, 5, 1}, {1, 1, 1}}));
  EXPECT_TRUE(CheckAgainst({{bias_turns}, {}}, biases).ok());
}

TEST(ArchitecturesTest, Gpt2HasTheParametersOfTheTrainer) {
  for (const bool tied : {true, false}) {
    const TinyGpt tiny{.layers = 3, .vocab = 41, .tied = tied, .pad_multiple = 128};
    EXPECT_EQ(Expand(*FindFamily("gpt2"), ModelJson(tiny))->parameters, SpecsOf(tiny));
  }
}

TEST(ArchitecturesTest, AModelIsGatedIfOnlyItsExpertsAre) {
  const json model = SmallMixture("mixtral");
  ModelShape shape = *ReadShape(model);
  shape.modules = *ModulesOf(*FindFamily("mixtral"), model);
  EXPECT_FALSE(shape.modules.Has("mlp.gate"));
  EXPECT_TRUE(shape.IsGated());
}

TEST(ArchitecturesTest, ImpossibleSizesAreNamed) {
  const json good = ModelJson({});
  for (const auto& [field, value] :
       {std::pair("num_layers", json(1 << 20)), std::pair("num_attention_heads", json(3)),
        std::pair("hidden_size", json(1ull << 63)), std::pair("vocab_size", json(-1)),
        std::pair("num_key_value_heads", json(3)), std::pair("ffn_hidden_size", json("64")),
        std::pair("head_dim", json(0))}) {
    json model = good;
    model[field] = value;
    EXPECT_EQ(ReadShape(model).status().kind(), StatusKind::kInvalidArgument) << field;
  }
  EXPECT_TRUE(ReadShape(good).ok());
}

TEST(ArchitecturesTest, BothSpellingsOfRopeAreTheSameModel) {
  const Family llama = *FindFamily("llama");
  std::mt19937_64 rng(1);
  json config = RandomConfig(llama, rng);
  config["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "linear"}, {"factor", 4.0}};
  json old = config;
  old.erase("rope_parameters");
  old["rope_theta"] = 5e5;
  old["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(*ModelOfConfig(llama, config), *ModelOfConfig(llama, old));
  json model = *ModelOfConfig(llama, old);
  model["hugging_face"] = {{"config", old}};
  const json written = *ConfigOfModel(llama, model, Dtype::kF32);
  EXPECT_EQ(written["rope_scaling"], old["rope_scaling"]);
  EXPECT_EQ(written["rope_parameters"], config["rope_parameters"]);
  model["rotary_base"] = 7;
  EXPECT_EQ((*ConfigOfModel(llama, model, Dtype::kF32))["rope_theta"], 7);
}

TEST(ArchitecturesTest, AMalformedKeptConfigurationIsIgnored) {
  json model = ModelJson({});
  const auto wanted = HuggingFaceModel(model, Dtype::kF32, {});
  ASSERT_TRUE(wanted.ok()) << wanted.status().message();
  model["hugging_face"] = "a text";
  const auto found = HuggingFaceModel(model, Dtype::kF32, {});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->files, wanted->files);
}

TEST(ArchitecturesTest, UnknownFieldsAndFamiliesAreRefused) {
  std::mt19937_64 rng(1);
  const Family opt = *FindFamily("opt");
  json config = RandomConfig(opt, rng);
  config["word_embed_proj_dim"] = config["hidden_size"];
  EXPECT_TRUE(ModelOfConfig(opt, config).ok());
  config["word_embed_proj_dim"] = 512;
  EXPECT_THAT(ModelOfConfig(opt, config).status().message(), HasSubstr("word_embed_proj_dim"));
  config["word_embed_proj_dim"] = nullptr;
  config["do_layer_norm_before"] = false;
  EXPECT_EQ(ModelOfConfig(opt, config).status().kind(), StatusKind::kNotSupported);
}

TEST(CheckAgainstTest, NamesMismatchedParts) {
  const auto expanded = Expand(*FindFamily("bloom"), ModelJson({}));
  const ForeignModel good{expanded->tensors, {}};
  ForeignModel twice = good;
  twice.tensors.push_back(good.tensors.back());
  ForeignModel outside = good;
  outside.tensors[5].parts[0].box.offset[0] = 1000;
  ForeignModel unknown = good;
  unknown.tensors[0].parts[0].parameter = "nobody";
  ForeignModel missing = good;
  missing.tensors.pop_back();
  EXPECT_TRUE(CheckAgainst(good, expanded->parameters).ok());
  for (const ForeignModel& bad : {twice, outside, unknown, missing})
    EXPECT_EQ(CheckAgainst(bad, expanded->parameters).kind(), StatusKind::kCorrupt);
}

TEST(ShapeOfConfigTest, LlamaWithGroupedQueries) {
  const auto shape = ShapeOfConfig({{"model_type", "llama"},
                                    {"hidden_size", 4096},
                                    {"num_hidden_layers", 32},
                                    {"num_attention_heads", 32},
                                    {"num_key_value_heads", 8},
                                    {"intermediate_size", 14336},
                                    {"vocab_size", 128256},
                                    {"max_position_embeddings", 8192},
                                    {"tie_word_embeddings", false}});
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_DOUBLE_EQ(shape->TotalParams(), 8030261248.0);  // as transformers counts Llama 3 8B
}

TEST(ShapeOfConfigTest, Gpt2) {
  const auto shape = ShapeOfConfig({{"model_type", "gpt2"},
                                    {"n_embd", 768},
                                    {"n_layer", 12},
                                    {"n_head", 12},
                                    {"vocab_size", 50257},
                                    {"n_positions", 1024}});
  ASSERT_TRUE(shape.ok());
  EXPECT_DOUBLE_EQ(shape->TotalParams(), 124439808.0);  // the same of GPT-2
}

TEST(ShapeOfConfigTest, MissingAndImpossibleSizesAreNamed) {
  EXPECT_THAT(ShapeOfConfig({{"hidden_size", 8}}).status().message(), HasSubstr("num_layers is missing"));
  EXPECT_THAT(ShapeOfConfig({{"num_hidden_layers", -1}}).status().message(), HasSubstr("positive integer"));
  EXPECT_FALSE(ShapeOfConfig({{"num_hidden_layers", "many"}}).ok());
}

json Llama8B() {
  return {{"model_type", "llama"},       {"hidden_size", 4096},
          {"num_hidden_layers", 32},     {"num_attention_heads", 32},
          {"num_key_value_heads", 8},    {"intermediate_size", 14336},
          {"vocab_size", 128256},        {"max_position_embeddings", 8192},
          {"tie_word_embeddings", false}};
}

struct CountedModel {
  const char* config;
  double all, active;  // as transformers counts them, those of experts that a token does not visit left out
};

TEST(ShapeOfConfigTest, MixturesHaveTheParametersThatTransformersCounts) {
  constexpr CountedModel kModels[] = {
      {R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
           "num_experts_per_tok": 2, "max_position_embeddings": 32768})",
       46702792704, 12879925248},
      {R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
           "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768,
           "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
           "vocab_size": 151936, "max_position_embeddings": 40960})",
       30532122624, 3353032704},
      {R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
           "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128, "head_dim": 64,
           "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8, "q_lora_rank": 1536,
           "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
           "first_k_dense_replace": 3, "vocab_size": 129280, "max_position_embeddings": 163840,
           "num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8"}})",
       671026404352, 37552282624},
      {R"({"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
           "moe_intermediate_size": 1408, "num_attention_heads": 16, "num_key_value_heads": 16,
           "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6, "q_lora_rank": null,
           "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
           "first_k_dense_replace": 1, "vocab_size": 102400, "max_position_embeddings": 163840})",
       15706484224, 2661150208},
      {R"({"model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
           "num_attention_heads": 28, "num_key_value_heads": 4, "moe_intermediate_size": 2560,
           "shared_expert_intermediate_size": 20480, "num_experts": 64, "num_experts_per_tok": 8,
           "vocab_size": 151936, "max_position_embeddings": 32768})",
       57408658944, 14249270784},
      {R"({"model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
           "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "moe_intermediate_size": 1408,
           "n_shared_experts": 1, "n_routed_experts": 128, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
           "attention_bias": true, "vocab_size": 151552, "max_position_embeddings": 131072})",
       106852245504, 13424123904}};
  for (const CountedModel& model : kModels) {
    const auto shape = ShapeOfConfig(json::parse(model.config));
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    EXPECT_DOUBLE_EQ(shape->TotalParams(), model.all) << model.config;
    EXPECT_DOUBLE_EQ(shape->ActiveParams(), model.active) << model.config;
  }
}

// Mixtral, Qwen3-MoE, DeepSeek-V3, DBRX, Jamba, Mamba, Qwen3-Next, T5: each has a key that the table of a
// dense decoder lacks.
TEST(ShapeOfConfigTest, AModelThatIsNotADenseDecoderIsRefusedByItsKey) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, json>>{{"num_local_experts", 8},
                                                 {"num_experts", 128},
                                                 {"n_routed_experts", 256},
                                                 {"kv_lora_rank", 512},
                                                 {"ffn_config", {{"moe_num_experts", 16}}},
                                                 {"layers_block_type", {"mamba"}},
                                                 {"state_size", 16},
                                                 {"layer_types", {"linear_attention"}},
                                                 {"is_encoder_decoder", true}}) {
    json config = Llama8B(), within = {{"text_config", Llama8B()}};
    config[key] = within["text_config"][key] = value;
    for (const json& tried : {config, within}) {
      const auto shape = ShapeOfConfig(tried);
      EXPECT_EQ(shape.status().kind(), StatusKind::kNotSupported) << key;
      EXPECT_THAT(shape.status().message(), HasSubstr(key));
    }
  }
  json dense = Llama8B();
  dense.update({{"num_local_experts", 0},
                {"num_experts", 1},
                {"n_routed_experts", nullptr},
                {"is_encoder_decoder", false},
                {"layer_types", {"sliding_attention", "full_attention"}}});
  EXPECT_DOUBLE_EQ(ShapeOfConfig(dense)->TotalParams(), 8030261248.0);
}

TEST(ShapeOfConfigTest, ReadsSizesFromOnePartOfACompositeModel) {
  for (const char* part : {"text_config", "llm_config", "language_config"}) {
    const auto shape =
        ShapeOfConfig({{"model_type", "seer"}, {part, Llama8B()}, {"vision_config", {{"hidden_size", 8}}}});
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    EXPECT_DOUBLE_EQ(shape->TotalParams(), 8030261248.0);
    EXPECT_THAT(ShapeOfConfig({{part, {{"hidden_size", 8}}}}).status().message(),
                AllOf(HasSubstr(part), HasSubstr("num_layers is missing")));
  }
  json mixture = Llama8B();
  mixture.update({{"model_type", "qwen3_moe"}, {"num_experts", 4}, {"num_experts_per_tok", 2}});
  EXPECT_EQ(ShapeOfConfig({{"model_type", "seer"}, {"text_config", mixture}})->experts, 4);
  json tied = Llama8B();
  tied.erase("tie_word_embeddings");
  tied["model_type"] = "gemma3_text";
  EXPECT_TRUE(ShapeOfConfig({{"text_config", tied}})->tied);
  EXPECT_FALSE(ShapeOfConfig({{"text_config", tied}, {"tie_word_embeddings", false}})->tied);
}

TEST(ShapeOfConfigTest, CountsLearnedPositions) {
  const auto shape = ShapeOfConfig({{"model_type", "gpt_bigcode"},
                                    {"n_embd", 64},
                                    {"n_layer", 2},
                                    {"n_head", 4},
                                    {"vocab_size", 100},
                                    {"n_positions", 8192}});
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->positions, 8192);
  EXPECT_EQ(shape->PositionParams(), 8192 * 64);
}

TEST(ShapeOfConfigTest, ReadsSizesOfAFamilyWithoutATable) {
  const auto shape = ShapeOfConfig({{"model_type", "falcon"},
                                    {"hidden_size", 4544},
                                    {"num_hidden_layers", 32},
                                    {"num_attention_heads", 71},
                                    {"num_kv_heads", 1},
                                    {"vocab_size", 65024}});
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_EQ(shape->KvHeads(), 1);
  EXPECT_EQ(shape->Ffn(), 4 * 4544);
  EXPECT_FALSE(shape->IsGated());
  EXPECT_EQ(ShapeOfConfig({}).status().kind(), StatusKind::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
