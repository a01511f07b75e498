// Weights of few bits with a scale for each block of them, read as the numbers that they stand for.
//
// A release stores such a weight as two tensors. FP8: NAME (F8_E4M3 [..., out, in]) and
// NAME_scale_inv, a factor for each block of rows and columns; blocks at the edges are cut off. MXFP4,
// as GPT-OSS has it: NAME_blocks (U8 [..., out, in / 32, 16]: two numbers a byte, that of the low four bits
// first) and NAME_scales (U8 [..., out, in / 32]: an exponent of two, plus 127). The weight is NAME there,
// [..., in, out]. torchtitan writes floats [..., out, in] as NAME_blocks; types decide.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/source.h"

namespace cairn {

inline constexpr uint64_t kMxBlock = 32;                      // numbers of MXFP4 that have one scale
inline constexpr uint64_t kFp8Block = 128;                    // rows and columns, if config.json does not say
inline constexpr std::string_view kFp8Scales = "_scale_inv";  // ends the names of scales

inline uint64_t BlocksIn(uint64_t extent, uint64_t block) { return (extent + block - 1) / block; }

struct BlockScaled {
  enum class Form { kFp8, kMxfp4, kSwapped };  // kSwapped: floats [..., out, in], without scales
  Form form = Form::kFp8;
  uint32_t values = 0;             // into a table of tensors
  std::optional<uint32_t> scales;  // into it, too
  std::string name;                // of the weight
  Dims shape;                      // of the weight
  uint64_t block_rows = 1, block_columns = 1;
};

// The method by which weights are quantized, if it is not one of those above: "gptq"; else empty. Its tensors
// can be copied, but not cast. config.json names it (`quantization`, or null), or the tensors show it:
// weights of integers, and FP8 with scales of other names or types.
std::string UnreadMethod(const TensorTable& tensors, const nlohmann::json& quantization);
// Errors: NotSupported naming such a method of the source, and the formats that keep its tensors.
Status CheckReadable(const CheckpointSource& source);

// Those among the tensors of a model's files; none if UnreadMethod() names a method. `quantization`: that of
// config.json, or null. `has_family`: a table knows the names of the weights, so that others must be parts of
// weights. Errors: Corrupt naming scales without a weight, a weight without scales, or shapes that do not
// fit; NotSupported naming a weight that cannot have scales.
Result<std::vector<BlockScaled>> FindBlockScaled(const TensorTable& tensors,
                                                 const nlohmann::json& quantization, bool has_family);

// "12 fp8 and 4 mxfp4": how many of them have scales; else empty.
std::string CountsOfScaled(const std::vector<BlockScaled>& scaled);

}  // namespace cairn
