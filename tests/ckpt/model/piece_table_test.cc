#include "ckpt/model/piece_table.h"

#include <gtest/gtest.h>

#include <random>

namespace cairn {
namespace {

// Numbers of every length, all ranks, and from no digest to more than a block holds.
Piece RandomPiece(std::mt19937_64& random) {
  const auto number = [&] { return random() >> random() % 64; };
  Piece piece{.tensor = static_cast<uint32_t>(number()), .file = static_cast<uint32_t>(number())};
  const int rank = static_cast<int>(random() % (kMaxRank + 1));
  for (int i = 0; i < rank; ++i) {
    piece.box.offset.push_back(number());
    piece.box.extent.push_back(number());
  }
  piece.range = {number(), number()};
  piece.file_offset = number();
  piece.stored_bytes = number();
  piece.chunks.resize(random() % 50 == 0 ? 100000 : random() % 5);
  for (Digest& digest : piece.chunks) digest.fill(static_cast<std::byte>(random()));
  return piece;
}

TEST(PieceTableTest, ReturnsAppendedPieces) {
  std::mt19937_64 random(3);
  std::vector<Piece> pieces;
  PieceTable table;
  for (int i = 0; i < 1000; ++i) {
    pieces.push_back(RandomPiece(random));
    table.push_back(pieces.back());
  }
  ASSERT_EQ(table.size(), pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(table[i], pieces[i]);
    EXPECT_EQ(table.FileOf(i), pieces[i].file);
  }
  size_t at = 0;
  for (const Piece& piece : table) EXPECT_EQ(piece, pieces[at++]);
  EXPECT_EQ(at, pieces.size());
  EXPECT_EQ(table.back(), pieces.back());
}

TEST(PieceTableTest, PiecesKeepTheirAddressesWhenTheTableMoves) {
  PieceTable table;
  const Piece piece{.tensor = 5, .box = Box::Whole({2, 3}), .range = {0, 6}, .chunks = {Digest{}}};
  table.push_back(piece);
  const PieceTable moved = std::move(table);
  EXPECT_EQ(moved[0], piece);
}

}  // namespace
}  // namespace cairn
