#include "convert/formats/dcp/dcp_pair.h"

#include <algorithm>

namespace cairn {
namespace {

// Below a step. One more line makes another program's known.
struct DcpPair {
  std::string_view model, optimizer;
};
constexpr DcpPair kPairs[] = {
    {"pytorch_model_fsdp_0", "optimizer_0"},             // accelerate
    {"policy/weights/model", "policy/optimizer/optim"},  // NeMo-RL, of Automodel
    {"policy/weights", "policy/optimizer"},              // NeMo-RL, of its own DTensor worker
};

bool HasMetadataIn(FileSystem& fs, const std::string& path, std::string_view folder) {
  return fs.Stat(JoinPath(JoinPath(path, folder), kDcpMetadata)).ok();
}

const DcpPair* PairAt(FileSystem& fs, const std::string& path) {
  const auto found =
      std::ranges::find_if(kPairs, [&](const DcpPair& pair) { return HasMetadataIn(fs, path, pair.model); });
  return found == std::end(kPairs) ? nullptr : found;
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
Result<DcpIndex> ReadPair(FileSystem& fs, const std::string& path, const DcpPair& pair) {
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
  return HoldsIndex(fs, path) || PairAt(fs, path) != nullptr;
}

Result<DcpIndex> ReadDcp(FileSystem& fs, const std::string& path) {
  if (HoldsIndex(fs, path)) return ReadDcpIndex(fs, path);
  if (const DcpPair* const pair = PairAt(fs, path)) return ReadPair(fs, path, *pair);
  return NotFound(
      "{}: it has .distcp files but no .metadata, which says where each tensor is: the save was "
      "interrupted; take an older checkpoint",
      path);
}

}  // namespace cairn
