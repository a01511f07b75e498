// A record: numbers of seven bits a byte, the lowest first, the top bit set in all bytes but the last
// (LEB128); then the digests and the stored chunks. Most numbers of a piece are small.
#include "ckpt/model/piece_table.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

constexpr size_t kMaxNumberBytes = 10;
constexpr size_t kMaxNumbers = 12 + 2 * kMaxRank;
constexpr size_t kFirstBlockBytes = 16 << 10;
constexpr size_t kMaxBlockBytes = 1 << 20;

std::byte* Put(std::byte* at, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *at++ = static_cast<std::byte>(value | 0x80);
  *at++ = static_cast<std::byte>(value);
  return at;
}

uint64_t Get(const std::byte*& at) {
  uint64_t value = static_cast<uint64_t>(*at & std::byte{0x7f});
  for (int shift = 7; (*at++ & std::byte{0x80}) != std::byte{0}; shift += 7)
    value |= static_cast<uint64_t>(*at & std::byte{0x7f}) << shift;
  return value;
}

// The numbers that a record begins with.
Region ReadPlace(const std::byte*& at, uint64_t& stored_bytes, Codec& codec) {
  Region region;
  region.file = static_cast<uint32_t>(Get(at));
  region.tensor = static_cast<uint32_t>(Get(at));
  region.offset = Get(at);
  stored_bytes = Get(at);
  codec = static_cast<Codec>(Get(at));
  const auto rank = static_cast<int>(Get(at));
  for (int i = 0; i < rank; ++i) region.box.offset.push_back(Get(at));
  for (int i = 0; i < rank; ++i) region.box.extent.push_back(Get(at));
  region.range.begin = Get(at);
  region.range.end = Get(at);
  return region;
}

}  // namespace

std::byte* PieceTable::Allocate(size_t bytes) {
  if (bytes > free_bytes_) {
    const size_t usual = std::min(kMaxBlockBytes, kFirstBlockBytes << std::min<size_t>(blocks_.size(), 16));
    free_bytes_ = std::max(bytes, usual);
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(free_bytes_));
    free_ = blocks_.back().get();
  }
  free_bytes_ -= bytes;
  return std::exchange(free_, free_ + bytes);
}

void PieceTable::push_back(const Piece& piece) {
  std::byte numbers[kMaxNumbers * kMaxNumberBytes];
  std::byte* at = Put(numbers, piece.file);
  at = Put(at, piece.tensor);
  at = Put(at, piece.file_offset);
  at = Put(at, piece.stored_bytes);
  at = Put(at, static_cast<uint64_t>(piece.codec));
  at = Put(at, piece.box.rank());
  for (const uint64_t value : piece.box.offset) at = Put(at, value);
  for (const uint64_t value : piece.box.extent) at = Put(at, value);
  at = Put(at, piece.range.begin);
  at = Put(at, piece.range.end);
  at = Put(at, piece.chunks.size());
  at = Put(at, piece.stored.size());
  at = Put(at, piece.exceptions.size());
  const size_t number_bytes = at - numbers;
  const size_t digest_bytes = piece.chunks.size() * sizeof(Digest);
  const size_t stored_bytes = piece.stored.size() * sizeof(StoredChunk);
  const size_t exception_bytes = piece.exceptions.size() * sizeof(MasterException);
  std::byte* record = Allocate(number_bytes + digest_bytes + stored_bytes + exception_bytes);
  std::memcpy(record, numbers, number_bytes);
  if (digest_bytes > 0) std::memcpy(record + number_bytes, piece.chunks.data(), digest_bytes);
  if (stored_bytes > 0) std::memcpy(record + number_bytes + digest_bytes, piece.stored.data(), stored_bytes);
  if (exception_bytes > 0)
    std::memcpy(record + number_bytes + digest_bytes + stored_bytes, piece.exceptions.data(),
                exception_bytes);
  records_.push_back(record);
}

Piece PieceTable::operator[](size_t index) const {
  const std::byte* at = records_[index];
  Piece piece;
  const Region place = ReadPlace(at, piece.stored_bytes, piece.codec);
  piece.file = place.file;
  piece.tensor = place.tensor;
  piece.file_offset = place.offset;
  piece.box = place.box;
  piece.range = place.range;
  piece.chunks.resize(Get(at));
  piece.stored.resize(Get(at));
  piece.exceptions.resize(Get(at));
  const size_t digest_bytes = piece.chunks.size() * sizeof(Digest);
  const size_t stored_bytes = piece.stored.size() * sizeof(StoredChunk);
  if (digest_bytes > 0) std::memcpy(piece.chunks.data(), at, digest_bytes);
  if (!piece.stored.empty()) std::memcpy(piece.stored.data(), at + digest_bytes, stored_bytes);
  if (!piece.exceptions.empty())
    std::memcpy(piece.exceptions.data(), at + digest_bytes + stored_bytes,
                piece.exceptions.size() * sizeof(MasterException));
  return piece;
}

uint32_t PieceTable::FileOf(size_t index) const {
  const std::byte* at = records_[index];
  return static_cast<uint32_t>(Get(at));
}

Region PieceTable::RegionOf(size_t index) const {
  const std::byte* at = records_[index];
  uint64_t stored_bytes = 0;
  Codec codec = Codec::kNone;
  return ReadPlace(at, stored_bytes, codec);
}

}  // namespace cairn
