// Element types of tensors: their names, sizes and the numbers that stand for them on disk.
//
// Source: FORMAT.md, "Element types".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

enum class Dtype : uint8_t {
  kF64 = 1,
  kF32 = 2,
  kF16 = 3,
  kBF16 = 4,
  kF8E4M3 = 5,  // float8_e4m3fn: no infinities
  kF8E5M2 = 6,
  kI64 = 7,
  kI32 = 8,
  kI16 = 9,
  kI8 = 10,
  kU8 = 11,
  kBool = 12,  // one byte, 0 or 1
  // Kept as they are; nothing here computes with them.
  kF8E8M0 = 13,  // float8_e8m0fnu: a power of two, the scale of a block
  kF4x2 = 14,    // float4_e2m1fn_x2: two numbers of four bits in a byte
};

// Bytes of one element; 0 for a number that is not a Dtype.
uint64_t SizeOf(Dtype dtype);

// "fp32", "bf16", "int64", ...; "?" for a number that is not a Dtype.
std::string_view Name(Dtype dtype);

// torch's: "float32", "bfloat16", "int64", ...; "?" for a number that is not a Dtype.
std::string_view TorchName(Dtype dtype);

// The inverse of both; also takes other spellings of torch and NumPy ("half", "long").
std::optional<Dtype> ParseDtype(std::string_view name);

}  // namespace cairn
