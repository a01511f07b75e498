#include "runtime/text/line_reader.h"

#include <random>

#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

struct Piece {
  std::string text;
  bool ends_line;
  bool operator==(const Piece&) const = default;
};

std::vector<Piece> Pieces(const std::string& content) {
  TempDir dir;
  WriteFile(dir / "f", content);
  auto reader = LineReader::Open(FileSystem::Posix(), dir / "f");
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  std::vector<Piece> pieces;
  LinePiece piece;
  while (*reader->Next(&piece)) pieces.push_back({std::string(piece.text), piece.ends_line});
  EXPECT_EQ(reader->bytes_read(), content.size());
  return pieces;
}

TEST(LineReaderTest, LinesKeepTheirNewlines) {
  EXPECT_EQ(Pieces("a\n\nb"), (std::vector<Piece>{{"a\n", true}, {"\n", true}, {"b", true}}));
  EXPECT_EQ(Pieces("a\n"), (std::vector<Piece>{{"a\n", true}}));
  EXPECT_TRUE(Pieces("").empty());
}

TEST(LineReaderTest, LongLineIsCutBeforeASpace) {
  const std::string first = std::string(kMaxLinePieceBytes - 10, 'x');
  const auto pieces = Pieces(first + " " + std::string(20, 'y') + "\nz");
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0], (Piece{first, false}));
  EXPECT_EQ(pieces[1], (Piece{" " + std::string(20, 'y') + "\n", true}));
}

TEST(LineReaderTest, LongLineWithoutSpacesIsCutBetweenCharacters) {
  std::string content = "a";
  while (content.size() < 2 * kMaxLinePieceBytes + 5) content += "\xE2\x82\xAC";
  std::string joined;
  for (const Piece& piece : Pieces(content)) {
    EXPECT_NE(static_cast<uint8_t>(piece.text[0]) & 0xC0, 0x80);
    EXPECT_LE(piece.text.size(), kMaxLinePieceBytes);
    joined += piece.text;
  }
  EXPECT_EQ(joined, content);
}

TEST(LineReaderTest, KeepsBytesOfAnyKind) {
  std::mt19937 random(3);
  for (const size_t size : {size_t{1}, kMaxLinePieceBytes - 1, kMaxLinePieceBytes, kMaxLinePieceBytes + 1,
                            3 * kMaxLinePieceBytes}) {
    for (const int alphabet : {1, 256}) {
      std::string content(size, '\0');
      for (char& byte : content) byte = static_cast<char>(0x80 + random() % alphabet);
      std::string joined;
      for (const Piece& piece : Pieces(content)) joined += piece.text;
      EXPECT_EQ(joined, content);
    }
  }
}

TEST(LineReaderTest, LinesAreNumberedFromOne) {
  TempDir dir;
  WriteFile(dir / "f", "a\n" + std::string(2 * kMaxLinePieceBytes, 'x') + "\nb\n");
  auto reader = LineReader::Open(FileSystem::Posix(), dir / "f");
  LinePiece piece;
  std::vector<uint64_t> numbers;
  while (*reader->Next(&piece)) numbers.push_back(reader->line_number());
  EXPECT_EQ(numbers.front(), 1u);
  EXPECT_EQ(numbers[1], 2u);
  EXPECT_EQ(numbers.back(), 3u);
}

TEST(LineReaderTest, DirectoryIsRefused) {
  TempDir dir;
  EXPECT_EQ(LineReader::Open(FileSystem::Posix(), dir.path()).status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(LineReader::Open(FileSystem::Posix(), dir / "none").status().kind(), StatusKind::kNotFound);
}

}  // namespace
}  // namespace cairn
