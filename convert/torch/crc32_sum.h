// The CRC-32 of a record whose bytes come in any order, each once; those that never come are zeros.
//
// A CRC without its initial and final inversions is linear over GF(2): the one of a record is the sum of
// those of its stretches, each multiplied by x to the power of the number of bits after it. Polynomial of zip
// and gzip (0xedb88320, reflected). Source: RFC 1952, 8; Mark Adler's crc32_combine() for the idea.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {

// As zlib's crc32(0, ...).
uint32_t Crc32(std::span<const std::byte> bytes);

class Crc32Sum {
 public:
  explicit Crc32Sum(uint64_t record_bytes) : bytes_(record_bytes) {}

  // The linear CRC of a stretch continues where `crc` (0 at first) ended.
  static uint32_t Extend(uint32_t crc, std::span<const std::byte> bytes);
  // Adds a range that ends before byte `end` of the record; `crc` is the result of Extend() for it.
  void Add(uint64_t end, uint32_t crc);
  uint32_t Finish() const;

 private:
  uint64_t bytes_;
  uint32_t sum_ = 0;
};

}  // namespace cairn
