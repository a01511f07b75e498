// Everything is checked and made in memory before a byte is written: the receipts give one catalog that
// covers each element exactly once, and that gives the index and the manifest. The manifest is written last,
// because it makes the directory valid and holds the digest of the index.

#include "ckpt/step/seal.h"

#include "ckpt/h5/h5_index.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

Result<Catalog> MergeReceipts(const std::vector<TensorEntry>& tensors,
                              const std::vector<ShardReceipt>& receipts) {
  Catalog merged;
  merged.tensors = tensors;
  const TensorLookup lookup(merged);
  for (const ShardReceipt& receipt : receipts) {
    const auto file = static_cast<uint32_t>(merged.files.size());
    merged.files.push_back(receipt.file.name);
    for (Piece piece : receipt.catalog.pieces) {
      const TensorEntry& tensor = receipt.catalog.tensors[piece.tensor];
      CAIRN_ASSIGN_OR_RETURN(piece.tensor, lookup.Find(tensor.spec.name, tensor.role));
      if (!(tensors[piece.tensor] == tensor))
        return Corrupt("{}: tensor {} differs from the model's", receipt.file.name, DisplayName(tensor));
      piece.file = file;
      merged.pieces.push_back(std::move(piece));
    }
  }
  merged.SortPieces();
  CAIRN_RETURN_IF_ERROR(CheckCoverage(merged));
  return merged;
}

}  // namespace

StepInfo StepInfo::Of(const Manifest& source, const Topology& topology) {
  return {{source.run, source.step}, topology, source.model, source.state, source.history, source.descent};
}

Result<StepSeal> MakeSeal(const StepInfo& info, const std::vector<TensorEntry>& tensors,
                          const std::vector<ShardReceipt>& receipts, H5Views* kept) {
  CAIRN_ASSIGN_OR_RETURN(const Catalog catalog, MergeReceipts(tensors, receipts));
  std::vector<ManifestFile> files;
  for (const ShardReceipt& receipt : receipts) files.push_back(receipt.file);
  return SealCatalog(info, catalog, std::move(files), {}, kept);
}

Result<StepSeal> SealCatalog(const StepInfo& info, const Catalog& catalog, std::vector<ManifestFile> files,
                             const std::string& shards, H5Views* kept) {
  CAIRN_ASSIGN_OR_RETURN(H5Index index, BuildIndex(catalog, info.model, info.state, shards, kept));
  Manifest manifest{.run = info.identity.run,
                    .step = info.identity.step,
                    .descent = info.descent,
                    .topology = info.topology,
                    .model = info.model,
                    .state = info.state,
                    .history = info.history,
                    .files = std::move(files),
                    .shards = shards,
                    .catalog_offset = index.catalog_offset,
                    .catalog_bytes = index.catalog_bytes,
                    .catalog_digest = index.catalog_digest};
  manifest.files.push_back({std::string(kIndexName), index.bytes.size(), DigestOf(index.bytes)});
  return StepSeal{std::move(index.bytes), EncodeManifest(manifest)};
}

Status WriteSeal(FileSystem& fs, const std::string& directory, const StepSeal& seal) {
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, JoinPath(directory, kIndexName), seal.index));
  return WriteSmallFile(fs, JoinPath(directory, kManifestName), seal.manifest);
}

}  // namespace cairn
