// The bytes of Megatron's indexed datasets, shared by the reader and the encoder, which share nothing else.
//
// PREFIX.bin is raw tokens, little-endian, nothing around them. PREFIX.idx, little-endian and packed:
//
//   0        magic "MMIDIDX\0\0"
//   9        u64  version, 1
//   17       u8   token type
//   18       u64  S, the number of sequences
//   26       u64  D, the entries of the document index: documents + 1
//   34       i32  sequence lengths [S], tokens
//   34+4S    i64  sequence pointers [S], bytes from the start of PREFIX.bin
//   34+12S   i64  document index [D]: the sequence that each document begins with; first 0, last S
//
// The arrays are not aligned. Multimodal datasets append i8 modes [S]. Source:
// megatron.core.datasets.indexed_dataset.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr std::string_view kLegacyIndexMagic{"TNTIDX\0\0",
                                                    8};  // fairseq's "cached" and "lazy" layouts
inline constexpr uint64_t kIndexVersion = 1;
inline constexpr uint64_t kIndexHeaderBytes = 34;

// The numbers are those of the file. Megatron's 6 and 7 are floating point and hold no tokens.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

struct TokenTypeRow {
  TokenType type;
  uint64_t bytes;
};
inline constexpr TokenTypeRow kTokenTypes[] = {{TokenType::kU8, 1},  {TokenType::kI8, 1},
                                               {TokenType::kI16, 2}, {TokenType::kI32, 4},
                                               {TokenType::kI64, 8}, {TokenType::kU16, 2}};

// Null for an unknown number.
constexpr const TokenTypeRow* FindTokenType(uint8_t code) {
  for (const TokenTypeRow& row : kTokenTypes)
    if (static_cast<uint8_t>(row.type) == code) return &row;
  return nullptr;
}
constexpr uint64_t SizeOf(TokenType type) { return FindTokenType(static_cast<uint8_t>(type))->bytes; }

// Calls visit(T()) with the number type of such tokens.
template <typename Visit>
void WithTokenOf(TokenType type, Visit&& visit) {
  switch (type) {
    case TokenType::kU8:
      return visit(uint8_t());
    case TokenType::kI8:
      return visit(int8_t());
    case TokenType::kI16:
      return visit(int16_t());
    case TokenType::kI32:
      return visit(int32_t());
    case TokenType::kI64:
      return visit(int64_t());
    case TokenType::kU16:
      return visit(uint16_t());
  }
}

inline std::string IndexPath(const std::string& prefix) { return prefix + ".idx"; }
inline std::string TokensPath(const std::string& prefix) { return prefix + ".bin"; }

}  // namespace cairn
