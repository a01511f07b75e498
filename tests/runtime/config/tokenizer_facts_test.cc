#include "runtime/config/tokenizer_facts.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

using Files = std::map<std::string, std::string>;

TEST(TokenizerFactsTest, SizeAndEndOfEachKindOfModel) {
  const std::string added = R"("added_tokens": [{"id": 8, "content": "<end>"}])";
  const std::string config = R"({"eos_token": {"content": "<end>"}})";
  for (
      const std::string model :
      {R"({"type": "BPE", "vocab": {"a": 0, "</s>": 5}, "merges": []})", R"({"vocab": {"</s>": 5}})",
       R"({"type": "Unigram", "vocab": [["a", 0], ["b", -1.5], ["", 0], ["c", 0], ["d", 0], ["</s>", 0]]})"}) {
    const std::string bare = "{\"model\": " + model + "}";
    const auto known = FactsOfHfTokenizer({{"tokenizer.json", bare}});
    ASSERT_TRUE(known.ok()) << known.status().message();
    EXPECT_EQ(known->vocab_size, 6u);
    EXPECT_EQ(known->eod, 5);
    const auto named = FactsOfHfTokenizer(
        {{"tokenizer.json", "{\"model\": " + model + ", " + added + "}"}, {"tokenizer_config.json", config}});
    ASSERT_TRUE(named.ok()) << named.status().message();
    EXPECT_EQ(named->vocab_size, 9u);
    EXPECT_EQ(named->eod, 8);
  }
  const auto gpt2 =
      FactsOfHfTokenizer({{"vocab.json", R"({"a": 0, "<|endoftext|>": 1, "b": 2})"}, {"merges.txt", ""}});
  EXPECT_EQ(gpt2->vocab_size, 3u);
  EXPECT_EQ(gpt2->eod, 1);
  EXPECT_EQ(FactsOfHfTokenizer({{"vocab.json", R"({"a": 0})"}, {"merges.txt", ""}})->eod, std::nullopt);
}

TEST(TokenizerFactsTest, HostileFilesAreRefused) {
  for (const std::string text :
       {"[1", "", "[]", "7", "{}", R"({"model": 3})", R"({"model": {"vocab": "a"}})",
        R"({"model": {"vocab": {"a": -6}}})", R"({"model": {"vocab": {"a": 1.5}}})",
        R"({"model": {"vocab": {"a": 18446744073709551615}}})", R"({"model": {"vocab": {"a": 2147483647}}})",
        R"({"model": {"vocab": [3]}})", R"({"model": {"vocab": [[]]}})",
        R"({"model": {"vocab": {}}, "added_tokens": [3]})",
        R"({"model": {"vocab": {}}, "added_tokens": [{"content": "a"}]})",
        R"({"model": {"vocab": {}}, "added_tokens": [{"content": 1, "id": 1}]})"})
    EXPECT_EQ(FactsOfHfTokenizer({{"tokenizer.json", text}}).status().kind(), StatusKind::kCorrupt) << text;
  const Files good = {{"tokenizer.json", R"({"model": {"vocab": {"a": 0}}})"}};
  for (const std::string config : {"{", R"({"eos_token": "b"})"}) {
    Files files = good;
    files["tokenizer_config.json"] = config;
    EXPECT_EQ(FactsOfHfTokenizer(files).status().kind(), StatusKind::kCorrupt) << config;
  }
  EXPECT_EQ(FactsOfHfTokenizer({}).status().kind(), StatusKind::kNotFound);
  EXPECT_EQ(FactsOfHfTokenizer({{"vocab.json", "{}"}}).status().kind(), StatusKind::kNotFound);
}

// Each prefix of a model, and each byte of it replaced by each value, is read or refused.
TEST(TokenizerFactsTest, DamagedSentencePieceModelsAreReadOrRefused) {
  const std::string model(
      "\x0a\x0a\x0a\x01\x61\x15\x00\x00\x80\xbf\x18\x01\x0a\x03\x0a\x01\x62\x12\x05\x08\x07\xd0\x02\x01", 24);
  ASSERT_TRUE(FactsOfSentencePiece(model).ok());
  EXPECT_EQ(FactsOfSentencePiece(model)->vocab_size, 2u);
  EXPECT_EQ(FactsOfSentencePiece(model)->eod, 1);
  int refused = 0;
  for (size_t i = 0; i < model.size(); ++i) {
    refused += !FactsOfSentencePiece(model.substr(0, i)).ok();
    for (int value = 0; value < 256; ++value) {
      std::string damaged = model;
      damaged[i] = static_cast<char>(value);
      const auto facts = FactsOfSentencePiece(damaged);
      refused += !facts.ok();
      EXPECT_TRUE(!facts.ok() || !facts->eod || static_cast<uint64_t>(*facts->eod) < facts->vocab_size);
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace cairn
