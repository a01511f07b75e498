#include "runtime/text/text_source.h"

#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

class TextSourceTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    WriteFile(dir_ / name, content);
    return dir_ / name;
  }

  // The documents, chunks joined; or the error.
  Result<std::vector<std::string>> Documents(const std::vector<std::string>& paths,
                                             const TextSourceOptions& options = {}) {
    CAIRN_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(FileSystem::Posix(), paths, options));
    std::vector<std::string> documents;
    std::string document;
    TextChunk chunk;
    chunks_ = 0;
    for (;;) {
      CAIRN_ASSIGN_OR_RETURN(const bool more, source.Next(&chunk));
      if (!more) break;
      ++chunks_;
      document += chunk.text;
      if (chunk.ends_document) documents.push_back(std::exchange(document, ""));
    }
    EXPECT_TRUE(document.empty());
    EXPECT_EQ(source.bytes_read(), source.total_bytes());
    return documents;
  }

  void ExpectRefused(const std::string& content, const std::string& text) {
    const auto documents = Documents({Write("bad.jsonl", content)});
    ASSERT_FALSE(documents.ok());
    EXPECT_EQ(documents.status().kind(), StatusKind::kCorrupt);
    EXPECT_NE(documents.status().message().find("bad.jsonl: " + text), std::string::npos)
        << documents.status().message();
  }

  TempDir dir_;
  int chunks_ = 0;
};

using Texts = std::vector<std::string>;

TEST_F(TextSourceTest, AFileIsOneDocumentByteForByte) {
  EXPECT_EQ(*Documents({Write("a.txt", "\n\none\n\ntwo \r\n\n"), Write("b.txt", "three")}),
            (Texts{"\n\none\n\ntwo \r\n\n", "three"}));
}

TEST_F(TextSourceTest, EmptyFileHasNoDocument) { EXPECT_TRUE(Documents({Write("a.txt", "")})->empty()); }

TEST_F(TextSourceTest, BlankLinesSeparateDocumentsOnRequest) {
  EXPECT_EQ(
      *Documents({Write("a.txt", "\n \none\ntwo\n\t\r\n\nthree\r\n\n")}, {.split_on_blank_lines = true}),
      (Texts{"one\ntwo", "three"}));
  EXPECT_EQ(*Documents({Write("a.txt", "one"), Write("b.txt", "two\n")}, {.split_on_blank_lines = true}),
            (Texts{"one", "two"}));
  EXPECT_TRUE(Documents({Write("a.txt", " \n\n")}, {.split_on_blank_lines = true})->empty());
}

TEST_F(TextSourceTest, LargeDocumentComesInChunks) {
  std::string content;
  while (content.size() < 5 * kMaxLinePieceBytes)
    content += "A line of some length, number " + std::to_string(content.size()) + "\n";
  EXPECT_EQ(*Documents({Write("a.txt", content)}), Texts{content});
  EXPECT_GE(chunks_, 5);
  EXPECT_LE(chunks_, 7);
  content.pop_back();
  EXPECT_EQ(*Documents({Write("a.txt", content + "\n")}, {.split_on_blank_lines = true}), Texts{content});
}

// The blanks at its end are a separate piece.
TEST_F(TextSourceTest, TheEndOfALongLineIsNotABlankLine) {
  const std::string content = fmt::format("{:x>{}}  \nthe same document\n", "", 2 * kMaxLinePieceBytes);
  EXPECT_EQ(Documents({Write("a.txt", content)}, {.split_on_blank_lines = true})->size(), 1u);
}

TEST_F(TextSourceTest, JsonLinesAreFoundByName) {
  const std::string lines =
      "{\"text\": \"one\\ntwo\", \"id\": 1}\n\n{\"body\": \"x\", \"text\": \"\\u20ac\"}";
  for (const std::string name : {"a.jsonl", "a.ndjson", "a.json"}) {
    EXPECT_EQ(*Documents({Write(name, lines)}), (Texts{"one\ntwo", "\xE2\x82\xAC"}));
  }
  EXPECT_EQ(*Documents({Write("a.txt", lines)}), Texts{lines});
  EXPECT_EQ(Documents({Write("a.txt", lines)}, {.format = TextFormat::kJsonLines})->size(), 2u);
  EXPECT_EQ(*Documents({Write("a.jsonl", "{\"body\": \"x\"}\n")}, {.json_key = "body"}), Texts{"x"});
}

TEST_F(TextSourceTest, BadJsonLinesAreNamed) {
  ExpectRefused("{\"text\": \"a\"}\n{\"text\": \n", "line 2 is not a JSON object");
  ExpectRefused("[1]\n", "line 1 is not a JSON object");
  ExpectRefused("{\"text\": \"\xFF\"}\n", "line 1 is not a JSON object");
  ExpectRefused("{\"text\": 3}\n", "line 1 has no string under \"text\"");
  ExpectRefused("{\"body\": \"a\"}\n", "line 1 has no string under \"text\"");
  ExpectRefused(std::string(100'000, '['), "line 1 is not a JSON object");
}

TEST_F(TextSourceTest, ReportsMissingInputBeforeReadingAny) {
  const auto source = TextSource::Open(FileSystem::Posix(), {Write("a.txt", "x"), dir_ / "none.txt"}, {});
  ASSERT_FALSE(source.ok());
  EXPECT_EQ(source.status().kind(), StatusKind::kNotFound);
}

}  // namespace
}  // namespace cairn
