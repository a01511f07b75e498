#include "convert/torch/crc32_sum.h"

#include <isa-l/crc.h>

#include <array>

namespace cairn {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320;  // x^32 left out, the lowest power in the highest bit
constexpr uint32_t kOne = 0x80000000;         // x^0

// a(x) b(x) mod the polynomial.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b >> 1 ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x^(8 * 2^i)
constexpr auto kPowers = [] {
  std::array<uint32_t, 64> powers{};
  powers[0] = kOne >> 8;
  for (size_t i = 1; i < powers.size(); ++i) powers[i] = Multiply(powers[i - 1], powers[i - 1]);
  return powers;
}();

// `crc` followed by this many zero bytes.
uint32_t Shift(uint32_t crc, uint64_t bytes) {
  for (size_t i = 0; bytes != 0; ++i, bytes >>= 1)
    if (bytes & 1) crc = Multiply(crc, kPowers[i]);
  return crc;
}

}  // namespace

uint32_t Crc32(std::span<const std::byte> bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

// ISA-L inverts before and after.
uint32_t Crc32Sum::Extend(uint32_t crc, std::span<const std::byte> bytes) {
  return ~crc32_gzip_refl(~crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

void Crc32Sum::Add(uint64_t end, uint32_t crc) { sum_ ^= Shift(crc, bytes_ - end); }

uint32_t Crc32Sum::Finish() const { return ~(sum_ ^ Shift(UINT32_MAX, bytes_)); }

}  // namespace cairn
