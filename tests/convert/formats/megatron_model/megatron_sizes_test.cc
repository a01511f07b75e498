// Shapes of a rank's tensors as Megatron-LM cuts them: embeddings [vocabulary / TP, hidden], query_key_value
// [(heads + 2 * groups) * head / TP, hidden], dense_4h_to_h [hidden, ffn / TP].
#include "convert/formats/megatron_model/megatron_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckpt/model/tensor.h"
#include "tests/support/pickled_json.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;
using testing::Pair;

// A GPT of hidden size 32 and 4 heads of 8, its vocabulary padded to 128, at TP=2.
MegatronShapes Shapes() {
  return {{{kBeforeLayers, "word_embeddings.weight"}, {64, 32}},
          {{kBeforeLayers, "position_embeddings.weight"}, {16, 32}},
          {{0, "self_attention.query_key_value.weight"}, {48, 32}},
          {{0, "mlp.dense_h_to_4h.weight"}, {64, 32}},
          {{0, "mlp.dense_4h_to_h.weight"}, {32, 64}},
          {{2, "mlp.dense_4h_to_h.weight"}, {32, 64}},
          {{kAfterLayers, "final_layernorm.weight"}, {32}}};
}

Result<std::map<std::string, uint64_t>> SizesOf(const json& args, const MegatronShapes& shapes) {
  return SizesShown(*PickledJson(args)->root, shapes, 2);
}

TEST(MegatronSizesTest, ComputesSizesFromTheShapesOfARank) {
  const auto sizes = SizesOf(json::object(), Shapes());
  ASSERT_TRUE(sizes.ok()) << sizes.status().message();
  EXPECT_THAT(*sizes,
              AllOf(Contains(Pair("num_layers", 3)), Contains(Pair("hidden_size", 32)),
                    Contains(Pair("padded_vocab_size", 128)), Contains(Pair("max_position_embeddings", 16)),
                    Contains(Pair("ffn_hidden_size", 128)), Not(Contains(Key("num_key_value_heads")))));
}

TEST(MegatronSizesTest, ComputesGroupsFromTheHeads) {
  EXPECT_THAT(*SizesOf({{"num_attention_heads", 4}}, Shapes()), Contains(Pair("num_key_value_heads", 4)));
  MegatronShapes grouped = Shapes();
  grouped[{0, "self_attention.query_key_value.weight"}] = {32, 32};  // (4 + 2 * 2) * 8 / 2
  EXPECT_THAT(*SizesOf({{"num_attention_heads", 4}}, grouped), Contains(Pair("num_key_value_heads", 2)));
  grouped[{0, "self_attention.query_key_value.weight"}] = {64, 32};  // of heads of 16
  EXPECT_THAT(*SizesOf({{"num_attention_heads", 4}, {"kv_channels", 16}}, grouped),
              Contains(Pair("num_key_value_heads", 2)));
  for (const int heads : {0, -4, 5})
    EXPECT_THAT(*SizesOf({{"num_attention_heads", heads}}, Shapes()),
                Not(Contains(Key("num_key_value_heads"))))
        << heads;
}

TEST(MegatronSizesTest, KnowsTheNamesOfMegatronCore) {
  const MegatronShapes core = {{{kBeforeLayers, "word_embeddings.weight"}, {64, 32}},
                               {{1, "self_attention.linear_qkv.weight"}, {32, 32}},
                               {{1, "mlp.linear_fc1.weight"}, {96, 32}},
                               {{1, "mlp.linear_fc2.weight"}, {32, 48}}};
  const auto sizes =
      SizesOf({{"position_embedding_type", "rope"}, {"swiglu", true}, {"num_attention_heads", 4}}, core);
  ASSERT_TRUE(sizes.ok()) << sizes.status().message();
  EXPECT_THAT(*sizes, AllOf(Contains(Pair("num_layers", 2)), Contains(Pair("ffn_hidden_size", 96)),
                            Contains(Pair("num_key_value_heads", 2))));
}

TEST(MegatronSizesTest, AMissingArgumentThatChangesTheFunctionIsAnError) {
  MegatronShapes rotary = Shapes();
  rotary.erase({kBeforeLayers, "position_embeddings.weight"});
  EXPECT_THAT(SizesOf(json::object(), rotary).status().message(), HasSubstr("position_embedding_type"));
  EXPECT_TRUE(SizesOf({{"position_embedding_type", "rope"}}, rotary).ok());
  EXPECT_FALSE(SizesOf({{"position_embedding_type", nullptr}}, rotary).ok());

  MegatronShapes gated = Shapes();
  gated[{0, "mlp.dense_h_to_4h.weight"}] = {128, 32};
  EXPECT_THAT(SizesOf(json::object(), gated).status().message(), HasSubstr("swiglu"));
  EXPECT_TRUE(SizesOf({{"glu_activation", "geglu"}}, gated).ok());
}

}  // namespace
}  // namespace cairn
