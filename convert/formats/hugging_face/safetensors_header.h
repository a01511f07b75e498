// Reads the header of a safetensors file, which is not trusted.
//
// A file is a u64 length, that many bytes of JSON, and the tensors without holes or overlaps. Everything that
// the format's README demands is checked here, before memory is taken for it: the length against the file,
// JSON, keys and types, that each tensor has the bytes of its shape, and that all together are the file.
// Source: huggingface/safetensors, README and safetensors/src/tensor.rs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "convert/foreign/stored_array.h"

namespace cairn {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr std::string_view kSafetensorsMetadataKey = "__metadata__";
// torch.distributed.checkpoint's key in it, with where each tensor of the file begins in the whole one.
inline constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";

// A dtype's place in the format's enumeration, by which the reference writer sorts, and its name in it.
size_t SafetensorsTypeOrder(Dtype dtype);
std::string_view SafetensorsTypeName(Dtype dtype);

struct SafetensorsHeader {
  std::vector<StoredArray> tensors;  // by offset; one extent each, in file 0
  std::map<std::string, std::string> metadata;
};

// Errors: Corrupt naming the file, the tensor and what is wrong; NotSupported (a shape of more than kMaxRank
// dimensions); those of the disk.
Result<SafetensorsHeader> ReadSafetensorsHeader(FileSystem& fs, const std::string& path);

// Parses a header's JSON. `data_offset`: where the tensors start in a file of `file_bytes`.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t data_offset,
                                                 uint64_t file_bytes);

}  // namespace cairn
