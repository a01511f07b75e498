#include "convert/formats/dcp/dcp_pair.h"

#include <algorithm>

#include "convert/foreign/layouts.h"

namespace cairn {
namespace {

bool HasMetadataIn(FileSystem& fs, const std::string& path, std::string_view folder) {
  return fs.Stat(JoinPath(JoinPath(path, folder), kDcpMetadata)).ok();
}

// A lone model right below the step is found as the only checkpoint in it, which names any other beside it.
const ModelAndOptimizer* PartsAt(FileSystem& fs, const std::string& path) {
  for (const TrainerLayout& layout : TrainerLayouts())
    for (const ModelAndOptimizer& parts : layout.parts)
      if (HasMetadataIn(fs, path, parts.model) &&
          (parts.model.find('/') != std::string::npos || HasMetadataIn(fs, path, parts.optimizer)))
        return &parts;
  return nullptr;
}

Result<DcpIndex> ReadIndexBelow(FileSystem& fs, const std::string& path, std::string_view directory) {
  CAIRN_ASSIGN_OR_RETURN(DcpIndex index, ReadDcpIndex(fs, JoinPath(path, directory)));
  const auto place = [&](DcpItem& item) { item.file = JoinPath(directory, item.file); };
  for (DcpTensor& tensor : index.tensors)
    for (DcpChunk& chunk : tensor.chunks) place(chunk.item);
  for (DcpBytes& bytes : index.bytes) place(bytes.item);
  return index;
}

// The two as one index.
Result<DcpIndex> ReadPair(FileSystem& fs, const std::string& path, const ModelAndOptimizer& pair) {
  if (fs.Stat(JoinPath(path, "pytorch_model_fsdp_1/.metadata")).ok())
    return NotSupported("{}: accelerate saved several models in it; give one of its directories", path);
  CAIRN_ASSIGN_OR_RETURN(DcpIndex all, ReadIndexBelow(fs, path, pair.model));
  if (!HasMetadataIn(fs, path, pair.optimizer)) return all;
  CAIRN_ASSIGN_OR_RETURN(DcpIndex optimizer, ReadIndexBelow(fs, path, pair.optimizer));
  std::ranges::move(optimizer.tensors, std::back_inserter(all.tensors));
  std::ranges::move(optimizer.bytes, std::back_inserter(all.bytes));
  return all;
}

bool HoldsIndex(FileSystem& fs, const std::string& path) {
  return fs.Stat(JoinPath(path, kDcpMetadata)).ok();
}

}  // namespace

bool HoldsDcp(FileSystem& fs, const std::string& path) {
  return HoldsIndex(fs, path) || PartsAt(fs, path) != nullptr;
}

Result<DcpIndex> ReadDcp(FileSystem& fs, const std::string& path) {
  if (HoldsIndex(fs, path)) return ReadDcpIndex(fs, path);
  if (const ModelAndOptimizer* const pair = PartsAt(fs, path)) return ReadPair(fs, path, *pair);
  return NotFound(
      "{}: it has .distcp files but no .metadata, which says where each tensor is: the save was "
      "interrupted; take an older checkpoint",
      path);
}

}  // namespace cairn
