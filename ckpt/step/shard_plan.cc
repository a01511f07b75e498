// ShardContents keeps only the tensors that pieces name, and sorts the pieces; callers use the index of a
// piece as they gave it. HDF5 then lays out one dataset for each piece, and one for the shard's own catalog,
// the last. The length of the catalog does not depend on the digests, so its place is known before they are.
// The digest of the envelope is computed from what is known (HDF5's pages, the catalog, zeros), without
// reading the file.

#include "ckpt/step/shard_plan.h"

#include <algorithm>

#include "ckpt/base/byte_codec.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/piece.h"
#include "ckpt/step/chunk_decoder.h"

namespace cairn {
namespace {

// Keeps only the tensors that pieces name, renumbers them, sorts the pieces. Returns old index -> sorted
// index.
std::vector<size_t> Compact(Catalog& catalog, const std::vector<TensorEntry>& tensors,
                            std::vector<Piece> pieces) {
  std::map<uint32_t, uint32_t> renumbered;
  for (const Piece& piece : pieces) renumbered.emplace(piece.tensor, 0);
  for (auto& [old_index, new_index] : renumbered) {
    new_index = static_cast<uint32_t>(catalog.tensors.size());
    catalog.tensors.push_back(tensors[old_index]);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].tensor = renumbered[pieces[i].tensor];
    pieces[i].file_offset = i;  // remembers the given order through the sort
  }
  catalog.pieces = std::move(pieces);
  catalog.SortPieces();
  std::vector<size_t> sorted_at(catalog.pieces.size());
  for (size_t i = 0; i < sorted_at.size(); ++i) sorted_at[catalog.pieces[i].file_offset] = i;
  return sorted_at;
}

// A whole box keeps its shape; a flat range is a vector.
Dims DatasetShape(const Piece& piece) {
  if (piece.range.size() == piece.box.Volume()) return piece.box.extent;
  return {piece.range.size()};
}

}  // namespace

std::string ShardReceipt::Encode() const {
  ByteWriter out;
  out.PutText(file.name);
  out.Put(file.bytes);
  out.PutDigest(file.digest);
  out.Put(nonfinite);
  out.PutRaw(EncodeCatalog(catalog));
  return std::move(out).Take();
}

Result<ShardReceipt> ShardReceipt::Decode(std::string_view bytes) {
  ByteReader in(bytes);
  ShardReceipt receipt;
  receipt.file.name = in.GetText();
  receipt.file.bytes = in.Get<uint64_t>();
  receipt.file.digest = in.GetDigest();
  receipt.nonfinite = in.Get<uint64_t>();
  if (!in.ok()) return Corrupt("truncated shard receipt");
  CAIRN_ASSIGN_OR_RETURN(receipt.catalog, DecodeCatalog(in.GetRaw(in.left())));
  return receipt;
}

ShardContents::ShardContents(const std::string& name, const StepIdentity& identity,
                             const std::vector<TensorEntry>& tensors, std::vector<Piece> pieces) {
  catalog_.files = {name};
  sorted_at_ = Compact(catalog_, tensors, std::move(pieces));
  for (Piece& piece : catalog_.pieces) {
    piece.file = 0;
    piece.chunks.assign(ChunkCount(DecodedBytes(piece, catalog_.tensors[piece.tensor].dtype)), Digest{});
  }
  Bind(identity);
}

void ShardContents::Bind(const StepIdentity& identity) {
  seeds_.resize(piece_count());
  for (size_t i = 0; i < seeds_.size(); ++i)
    seeds_[i] = PieceSeed(identity.run, identity.step, tensor(i), piece(i).box, piece(i).range);
}

Digest EnvelopeDigest(const Catalog& shard, const H5Layout& layout, uint64_t catalog_offset,
                      std::string_view own_catalog) {
  std::map<uint64_t, std::string_view> extents;
  for (const H5Extent& extent : layout.metadata) extents.emplace(extent.offset, extent.bytes);
  extents.emplace(catalog_offset, own_catalog);

  std::vector<std::pair<uint64_t, uint64_t>> data;  // [begin, end) of each chunk
  for (const Piece& piece : shard.pieces)
    for (uint64_t chunk = 0; chunk < piece.chunks.size(); ++chunk) {
      const ChunkPlace place = PlaceOfChunk(piece, chunk, SizeOf(shard.tensors[piece.tensor].dtype));
      data.emplace_back(place.offset, place.offset + place.stored_bytes);
    }
  std::sort(data.begin(), data.end());
  data.emplace_back(layout.file_bytes, layout.file_bytes);
  Hasher hasher;
  const std::string zeros(kPageBytes, '\0');
  uint64_t at = 0;
  for (const auto& [begin, end] : data) {
    while (at < begin) {
      const auto next = extents.upper_bound(at);
      const auto extent = next == extents.begin() ? extents.end() : std::prev(next);
      const bool inside = extent != extents.end() && at < extent->first + extent->second.size();
      std::string_view bytes;
      if (inside) {
        bytes = extent->second.substr(at - extent->first, begin - at);
      } else {
        const uint64_t gap_end = next == extents.end() ? begin : std::min(begin, next->first);
        bytes = std::string_view(zeros).substr(0, gap_end - at);
      }
      hasher.Update(std::as_bytes(std::span(bytes)));
      at += bytes.size();
    }
    at = end;
  }
  return hasher.Finish();
}

Result<ShardPlan> ShardPlan::Make(ShardContents contents) {
  ShardPlan plan(std::move(contents));
  Catalog& catalog = plan.catalog();
  std::vector<H5DatasetSpec> datasets;
  for (Piece& piece : catalog.pieces) {
    const TensorEntry& tensor = catalog.tensors[piece.tensor];
    piece.stored_bytes = DecodedBytes(piece, tensor.dtype);
    datasets.push_back({PiecePath(tensor, piece.box, piece.range), tensor.dtype, DatasetShape(piece)});
  }
  datasets.push_back({kCatalogPath, Dtype::kU8, {EncodedCatalogBytes(catalog)}});
  CAIRN_ASSIGN_OR_RETURN(plan.layout_, LayOutH5(datasets));
  for (size_t i = 0; i < catalog.pieces.size(); ++i) catalog.pieces[i].file_offset = plan.layout_.offsets[i];
  return plan;
}

std::string ShardPlan::EncodeOwnCatalog() const {
  std::string blob = EncodeCatalog(catalog());
  blob.resize(PageUp(blob.size()), '\0');
  return blob;
}

ManifestFile ShardPlan::EntryOf(std::string_view own_catalog) const {
  return {name(), file_bytes(), EnvelopeDigest(catalog(), layout_, catalog_offset(), own_catalog)};
}

}  // namespace cairn
