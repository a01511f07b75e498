#include "runtime/config/named_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(TrainingTokenizerTest, FlagsGiveItsSizeAndFiles) {
  FileSystem& fs = FileSystem::Posix();
  TempDir dir;
  ASSERT_TRUE(
      WriteSmallFile(fs, dir / "gpt2-vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})").ok());
  ASSERT_TRUE(WriteSmallFile(fs, dir / "gpt2-merges.txt", "#version: 0.2\na b\n").ok());
  const auto gpt2 = OpenTrainingTokenizer(
      fs, {.vocab_file = dir / "gpt2-vocab.json", .merge_file = dir / "gpt2-merges.txt"});
  ASSERT_TRUE(gpt2.ok()) << gpt2.status().message();
  EXPECT_EQ(gpt2->vocab_size, 4u);
  EXPECT_TRUE(gpt2->files.contains("vocab.json") && gpt2->files.contains("merges.txt"));
  const auto refused = [&](const TrainConfig& config) {
    return OpenTrainingTokenizer(fs, config).status().message();
  };
  EXPECT_NE(refused({.tokenizer_type = "BertWordPieceCase"}).find("BertWordPieceCase"), std::string::npos);
  EXPECT_NE(refused({.vocab_file = dir / "gpt2-vocab.json"}).find("--merge-file"), std::string::npos);
  EXPECT_NE(refused({.tokenizer_type = "PretrainedFromHF"}).find("--tokenizer-name-or-path"),
            std::string::npos);
  EXPECT_NE(
      refused({.tokenizer_type = "PretrainedFromHF", .tokenizer_name_or_path = dir / "none"}).find("none"),
      std::string::npos);
  EXPECT_EQ(OpenTrainingTokenizer(fs, {})->vocab_size, 0u);
}

// Three pieces of a ModelProto, and a trainer_spec with eos_id.
TEST(TrainingTokenizerTest, ReadsSizeAndEndTokenOfASentencePieceModel) {
  FileSystem& fs = FileSystem::Posix();
  TempDir dir;
  const std::string piece =
      "\x0a\x03\x0a\x01"
      "a";
  const std::string pieces = piece + piece + piece;
  const auto open = [&](const std::string& model) {
    std::ofstream(dir / "a.model", std::ios::binary) << model;
    return OpenTrainingTokenizer(fs, {.tokenizer_model = dir / "a.model"});
  };
  const auto by_default = open(pieces);
  ASSERT_TRUE(by_default.ok()) << by_default.status().message();
  EXPECT_EQ(by_default->vocab_size, 3u);
  EXPECT_EQ(by_default->eod, 2);
  EXPECT_EQ(open(pieces + "\x12\x05\x08\x07\xd0\x02\x01")->eod, 1);
  EXPECT_EQ(open(pieces + "\x12\x0c\xd0\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")->eod, std::nullopt);
  for (const std::string& broken : {std::string("{}"), piece.substr(1), piece + "\x0a\x7f", std::string()})
    EXPECT_NE(open(broken).status().message().find("a.model: this is not a SentencePiece model"),
              std::string::npos);
}

}  // namespace
}  // namespace cairn
