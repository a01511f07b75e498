// A piece: a box of one tensor, or a flat range of its row-major order, and where the bytes lie.
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/digest.h"

namespace cairn {

enum class Codec : uint8_t { kNone = 0 };

struct Piece {
  uint32_t tensor = 0;  // into the catalog's tensors
  uint32_t file = 0;    // into the catalog's files
  Box box;
  FlatRange
      range;  // elements of the box's row-major order; [0, box.Volume()) where the piece is the whole box
  uint64_t file_offset = 0;  // bytes
  uint64_t stored_bytes = 0;
  Codec codec = Codec::kNone;
  std::vector<Digest> chunks;  // one per kChunkBytes of the decoded bytes; empty where the format has none
  bool operator==(const Piece&) const = default;
};

}  // namespace cairn
