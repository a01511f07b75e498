#include "runtime/text/text_import.h"

#include "runtime/text/load_tokenizer.h"
#include "runtime/text/sentencepiece_trainer.h"
#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

constexpr const char* kVerses[] = {
    "In the beginning was the word, and the word went on for a long time.",
    "And it was said among them: who has counted the stones of the cairn?",
    "Then the travellers came down from the mountain, and every one laid a stone.",
    "The wind took the sand away, but the stones of the cairn it could not take.",
};

std::string Prose(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += fmt::format("{} {}\n", kVerses[i % 4], i * 7919);
  return text;
}

class TextImportTest : public ::testing::Test {
 protected:
  TextSource Source(const std::string& content, const TextSourceOptions& options = {}) {
    WriteFile(dir_ / "input.txt", content);
    auto source = TextSource::Open(FileSystem::Posix(), {dir_ / "input.txt"}, options);
    EXPECT_TRUE(source.ok());
    return std::move(source).value();
  }

  // Imports to dir_/name and opens the result.
  IndexedDataset Import(const std::string& name, const std::string& content, const Tokenizer& tokenizer,
                        bool append_eod, const TextSourceOptions& options = {}) {
    TextSource source = Source(content, options);
    auto builder =
        IndexedDatasetBuilder::Create(FileSystem::Posix(), dir_ / name, TokenTypeFor(tokenizer.vocab_size()));
    EXPECT_TRUE(builder.ok());
    const auto counts = ImportText(source, tokenizer, append_eod, &*builder, [](const ImportCounts&) {});
    EXPECT_TRUE(counts.ok()) << counts.status().message();
    EXPECT_TRUE(builder->Finish().ok());
    auto dataset = IndexedDataset::Open(dir_ / name);
    EXPECT_TRUE(dataset.ok()) << dataset.status().message();
    EXPECT_EQ(dataset->token_count(), counts->tokens);
    EXPECT_EQ(dataset->document_count(), counts->documents);
    EXPECT_EQ(counts->bytes_read, content.size());
    return std::move(dataset).value();
  }

  std::unique_ptr<Tokenizer> Train(const std::string& content, uint32_t vocab_size) {
    TextSource source = Source(content);
    const auto model = TrainSentencePiece(source, vocab_size);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return MakeSentencePieceTokenizer(*model).value();
  }

  TempDir dir_;
};

TEST_F(TextImportTest, BytesAreTokens) {
  const auto dataset =
      Import("p", "a\xFF\n\nbc\n", *MakeByteTokenizer(), true, {.split_on_blank_lines = true});
  EXPECT_EQ(dataset.token_type(), TokenType::kU16);
  ASSERT_EQ(dataset.document_count(), 2u);
  EXPECT_EQ(Tokens(dataset, 0), (std::vector<int64_t>{'a', 0xFF, 256}));
  EXPECT_EQ(Tokens(dataset, 1), (std::vector<int64_t>{'b', 'c', 256}));
}

TEST_F(TextImportTest, DocumentOfManyChunksEndsOnce) {
  const std::string content = Prose(60'000);
  ASSERT_GT(content.size(), 3 * kMaxLinePieceBytes);
  const auto dataset = Import("p", content, *MakeByteTokenizer(), true);
  ASSERT_EQ(dataset.document_count(), 1u);
  const std::vector<int64_t> tokens = Tokens(dataset, 0);
  ASSERT_EQ(tokens.size(), content.size() + 1);
  EXPECT_EQ(tokens.back(), 256);
  EXPECT_TRUE(std::equal(content.begin(), content.end(), tokens.begin()));
}

// Like a Hugging Face tokenizer whose post_processor puts 257 before and 258 after a text.
class EnclosingTokenizer final : public Tokenizer {
 public:
  uint32_t vocab_size() const override { return 259; }
  std::optional<int32_t> eod() const override { return bytes_->eod(); }
  std::vector<int32_t> before() const override { return {257}; }
  std::vector<int32_t> behind() const override { return {258}; }
  bool cuts_anywhere() const override { return true; }
  Status Encode(std::string_view text, std::vector<Token>* tokens) const override {
    return bytes_->Encode(text, tokens);
  }

 private:
  std::unique_ptr<Tokenizer> bytes_ = MakeByteTokenizer();
};

TEST_F(TextImportTest, AnEmptyTextHasOnlyTheSpecialTokens) {
  const std::string lines = "{\"text\": \"a\"}\n{\"text\": \"\"}\n{\"text\": \"b\"}\n";
  const TextSourceOptions json{.format = TextFormat::kJsonLines};
  const auto dataset = Import("p", lines, EnclosingTokenizer(), true, json);
  ASSERT_EQ(dataset.document_count(), 3u);
  EXPECT_EQ(Tokens(dataset, 0), (std::vector<int64_t>{257, 'a', 258, 256}));
  EXPECT_EQ(Tokens(dataset, 1), (std::vector<int64_t>{257, 258, 256}));
  EXPECT_EQ(Tokens(dataset, 2), (std::vector<int64_t>{257, 'b', 258, 256}));
  EXPECT_EQ(Import("q", lines, *MakeByteTokenizer(), true, json).document_count(), 2u);
}

TEST_F(TextImportTest, CountingWritesNothing) {
  TextSource source = Source("hello\n");
  const auto counts = ImportText(source, *MakeByteTokenizer(), true, nullptr, [](const ImportCounts&) {});
  EXPECT_EQ(counts->documents, 1u);
  EXPECT_EQ(counts->tokens, 7u);
  EXPECT_EQ(FileSystem::Posix().List(dir_.path())->size(), 1u);
}

TEST_F(TextImportTest, ATrainedModelCompressesAndSplitsAtLineEndsLosslessly) {
  const std::string content = Prose(60'000);
  const auto tokenizer = Train(content.substr(0, 200'000), 600);
  EXPECT_EQ(tokenizer->vocab_size(), 600u);
  ASSERT_TRUE(tokenizer->eod().has_value());
  const auto dataset = Import("p", content, *tokenizer, true);
  const std::vector<int64_t> in_chunks = Tokens(dataset, 0);
  EXPECT_LT(in_chunks.size(), 2 * content.size() / 3);
  std::vector<Token> whole;
  ASSERT_TRUE(tokenizer->Encode(content, &whole).ok());
  std::vector<int64_t> ids;
  for (const Token& token : whole) ids.push_back(token.id);
  ids.push_back(*tokenizer->eod());
  EXPECT_EQ(in_chunks, ids);
}

TEST_F(TextImportTest, RefusesAVocabularyThatTheTextCannotFill) {
  TextSource source = Source(Prose(10));
  const auto model = TrainSentencePiece(source, 100'000);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(model.status().message().find("100000"), std::string::npos) << model.status().message();
  TextSource again = Source(Prose(10));
  EXPECT_FALSE(TrainSentencePiece(again, 3).ok());
  TextSource empty = Source("");
  EXPECT_FALSE(TrainSentencePiece(empty, 300).ok());
}

TEST_F(TextImportTest, UnknownTokenizersAndDamagedModelsAreRefused) {
  FileSystem& fs = FileSystem::Posix();
  EXPECT_EQ(LoadTokenizer(fs, "gpt2").status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(LoadTokenizer(fs, "sentencepiece:" + (dir_ / "none")).status().kind(), StatusKind::kNotFound);
  WriteFile(dir_ / "bad.model", "this is text");
  const auto bad = LoadTokenizer(fs, "sentencepiece:" + (dir_ / "bad.model"));
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().kind(), StatusKind::kCorrupt);
  EXPECT_NE(bad.status().message().find("bad.model"), std::string::npos);
}

}  // namespace
}  // namespace cairn
