// Many pieces in little memory: an opened step's, which may have hundreds of thousands.
//
// A Piece is convenient and large; in the table a piece of a matrix takes about 50 bytes, and a Piece is made
// on access. Pieces are only appended.
#pragma once

#include <iterator>
#include <memory>
#include <vector>

#include "ckpt/model/piece.h"
#include "ckpt/model/region.h"

namespace cairn {

class PieceTable {
 public:
  class Iterator {
   public:
    using value_type = Piece;
    using difference_type = ptrdiff_t;
    Iterator() = default;
    Piece operator*() const { return (*table_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    Iterator operator++(int) { return {table_, index_++}; }
    bool operator==(const Iterator&) const = default;

   private:
    friend PieceTable;
    Iterator(const PieceTable* table, size_t index) : table_(table), index_(index) {}
    const PieceTable* table_ = nullptr;
    size_t index_ = 0;
  };

  size_t size() const { return records_.size(); }
  bool empty() const { return records_.empty(); }
  Piece operator[](size_t index) const;
  Piece back() const { return (*this)[size() - 1]; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }
  // The region of a piece, without making the Piece.
  Region RegionOf(size_t index) const;
  uint32_t FileOf(size_t index) const;

  void reserve(size_t pieces) { records_.reserve(pieces); }
  void push_back(const Piece& piece);

 private:
  std::byte* Allocate(size_t bytes);

  std::vector<const std::byte*> records_;  // of each piece
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::byte* free_ = nullptr;  // in the last block
  size_t free_bytes_ = 0;
};

}  // namespace cairn
