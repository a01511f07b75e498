#include <gtest/gtest.h>

#include <fstream>

#include "runtime/tokenizer/hf_tokenizer.h"
#include "runtime/tokenizer/mapped_text.h"
#include "runtime/tokenizer/word_splitter.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using Words = std::vector<std::string>;
using Files = std::map<std::string, std::string>;

TEST(MappedTextTest, InvalidBytesBecomeReplacementsAsInPython) {
  const std::string text = "a\xFF\xC3\xA9\xE2\x82 b\xED\xA0\x80";
  const MappedText mapped = MappedText::ValidUtf8(text);
  EXPECT_EQ(mapped.text(), "a\uFFFDé\uFFFD b\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(mapped.Origin(0), 0u);
  EXPECT_EQ(mapped.Origin(2), 1u);  // inside of the first replacement
  EXPECT_EQ(mapped.Origin(4), 2u);
  EXPECT_EQ(mapped.Origin(9), 6u);  // behind the second
  EXPECT_EQ(mapped.Origin(mapped.text().size()), text.size());
}

TEST(MappedTextTest, ComposedTextKeepsItsOrigin) {
  const std::string text = "xe\u0301 y";
  const MappedText mapped = MappedText::Composed(text);
  EXPECT_EQ(mapped.text(), "xé y");
  EXPECT_EQ(mapped.Origin(1), 1u);
  EXPECT_EQ(mapped.Origin(3), 4u);
  EXPECT_EQ(mapped.Origin(5), 6u);
  EXPECT_EQ(MappedText::Composed("plain \u4E00").text(), "plain \u4E00");
  EXPECT_EQ(MappedText::Composed("\u1100\u1161\u11A8").text(), "\uAC01");
  EXPECT_EQ(MappedText::Composed("\uAC00\u11A7").text(), "\uAC00\u11A7");  // no end of a syllable
}

Words Split(const WordSplitter& splitter, std::string_view text) {
  Words words;
  EXPECT_TRUE(
      splitter.Split(text, [&](std::string_view word, uint64_t, bool) { words.emplace_back(word); }).ok());
  return words;
}

// The class of BLOOM's expression contains a bracket that begins a set only in Oniguruma.
TEST(WordSplitterTest, ExpressionsMatchLikeTokenizers) {
  WordSplitter bloom;
  bloom.Add({WordPattern::Compile(" ?[^(\\s|[.,!?…。，、।۔،])]+").value()});
  EXPECT_EQ(Split(bloom, "Hi there, (you)|me. 12"),
            (Words{"Hi", " there", ", (", "you", ")|", "me", ".", " 12"}));
  WordSplitter spaced;
  spaced.AddSpacePrefix();
  spaced.Add({WordPattern::Compile(" ?\\w+|\\s+").value()});
  EXPECT_EQ(Split(spaced, "a b"), (Words{" a", " b"}));
  EXPECT_FALSE(WordPattern::Compile("(").ok());
  WordSplitter literal;
  literal.Add({WordPattern::Literal("a.b").value(), SplitStep::Keep::kGaps});
  EXPECT_EQ(Split(literal, "xa.bya-b"), (Words{"x", "ya-b"}));
}

// Ranks: ab, then bc, then abc of a and bc.
Files Small(const std::string& more = "") {
  return {
      {"tokenizer.json",
       R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "bc": 5, "abc": 6, "Ġab": 7},
               "merges": [["a", "b"], "b c", ["a", "bc"], "Ġ ab"])" +
           more + R"(},
               "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
               "added_tokens": [{"id": 8, "content": "<end>", "special": true, "normalized": false}]})"},
      {"tokenizer_config.json", R"({"eos_token": {"content": "<end>"}})"}};
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<Token> tokens;
  EXPECT_TRUE(tokenizer.Encode(text, &tokens).ok());
  std::vector<int32_t> ids;
  for (const Token& token : tokens) ids.push_back(token.id);
  return ids;
}

TEST(HfTokenizerTest, MergesByRankAndFindsAddedTokens) {
  const auto tokenizer = MakeHfTokenizer(Small());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(Ids(**tokenizer, "abc ab"), (std::vector{4, 2, 7}));
  EXPECT_EQ(Ids(**tokenizer, "bc<end>a<end"), (std::vector{5, 8, 0}));  // no token for < e n d
  EXPECT_EQ((*tokenizer)->vocab_size(), 9u);
  EXPECT_EQ((*tokenizer)->eod(), 8);
  EXPECT_EQ((*tokenizer)->lost_bytes(), 252);
  std::vector<Token> tokens;
  ASSERT_TRUE((*tokenizer)->Encode("a abc", &tokens).ok());
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[1].begin, 1u);
  EXPECT_EQ(tokens[1].end, 4u);
  const auto whole = MakeHfTokenizer(Small(R"(, "ignore_merges": true)"));
  EXPECT_EQ(Ids(**whole, "abc"), (std::vector{6}));
}

TEST(HfTokenizerTest, UnsupportedPartsAreNamed) {
  const auto refused = [](std::string from, std::string to) {
    Files files = Small();
    std::string& text = files["tokenizer.json"];
    text.replace(text.find(from), from.size(), to);
    const auto tokenizer = MakeHfTokenizer(files);
    EXPECT_FALSE(tokenizer.ok()) << to;
    return tokenizer.ok() ? std::string() : tokenizer.status().message();
  };
  EXPECT_NE(refused(R"("BPE")", R"("WordPiece")").find("WordPiece"), std::string::npos);
  EXPECT_NE(refused(R"("ByteLevel")", R"("Metaspace")").find("Metaspace"), std::string::npos);
  EXPECT_NE(refused(R"("pre_tokenizer")", R"("normalizer": {"type": "Lowercase"}, "pre_tokenizer")")
                .find("Lowercase"),
            std::string::npos);
  EXPECT_NE(refused(R"("merges")", R"("dropout": 0.1, "merges")").find("dropout"), std::string::npos);
  EXPECT_NE(refused(R"("merges")", R"("no_such": 1, "merges")").find("no_such"), std::string::npos);
  EXPECT_NE(refused(R"("b c")", R"("b d")").find("merge 1"), std::string::npos);
  EXPECT_NE(refused(R"("id": 8)", R"("id": 9)").find("gives it 8"), std::string::npos);
  EXPECT_NE(refused(R"("abc": 6)", R"("abc": -6)").find("abc"), std::string::npos);
  EXPECT_FALSE(MakeHfTokenizer({{"tokenizer.json", "[1"}}).ok());
  EXPECT_FALSE(MakeHfTokenizer({}).ok());
}

}  // namespace
}  // namespace cairn
