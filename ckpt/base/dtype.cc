#include "ckpt/base/dtype.h"

#include <array>

namespace cairn {
namespace {

struct Row {
  Dtype dtype;
  uint64_t size;
  std::string_view name;
  std::string_view torch;
  std::string_view alias;
};

constexpr std::array<Row, 14> kRows = {{
    {Dtype::kF64, 8, "fp64", "float64", ""},
    {Dtype::kF32, 4, "fp32", "float32", ""},
    {Dtype::kF16, 2, "fp16", "float16", "half"},
    {Dtype::kBF16, 2, "bf16", "bfloat16", ""},
    {Dtype::kF8E4M3, 1, "fp8_e4m3", "float8_e4m3fn", ""},
    {Dtype::kF8E5M2, 1, "fp8_e5m2", "float8_e5m2", ""},
    {Dtype::kI64, 8, "int64", "int64", "long"},
    {Dtype::kI32, 4, "int32", "int32", "int"},
    {Dtype::kI16, 2, "int16", "int16", "short"},
    {Dtype::kI8, 1, "int8", "int8", "char"},
    {Dtype::kU8, 1, "uint8", "uint8", "byte"},
    {Dtype::kBool, 1, "bool", "bool", "boolean"},
    {Dtype::kF8E8M0, 1, "fp8_e8m0", "float8_e8m0fnu", ""},
    {Dtype::kF4x2, 1, "fp4_e2m1_x2", "float4_e2m1fn_x2", ""},
}};

const Row* Find(Dtype dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return &row;
  return nullptr;
}

}  // namespace

uint64_t SizeOf(Dtype dtype) {
  const Row* row = Find(dtype);
  return row ? row->size : 0;
}

std::string_view Name(Dtype dtype) {
  const Row* row = Find(dtype);
  return row ? row->name : "?";
}

std::string_view TorchName(Dtype dtype) {
  const Row* row = Find(dtype);
  return row ? row->torch : "?";
}

std::optional<Dtype> ParseDtype(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const Row& row : kRows)
    if (row.name == name || row.torch == name || row.alias == name) return row.dtype;
  return std::nullopt;
}

}  // namespace cairn
