// Layout of a shard: HDF5's metadata in blocks of pages, each piece's data from a page boundary on with zeros
// behind it up to the next, and last the shard's own catalog (kCatalogPath). FORMAT.md, "Shards".
//
// A page belongs either to one piece or to the frame, which is everything that no piece covers. Pieces are
// written as they come; the frame, which holds the digests of the pieces, is written by Finish().
#include "ckpt/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "ckpt/byte_codec.h"
#include "ckpt/layout.h"

namespace cairn {
namespace {

uint64_t PageUp(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

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
  out.PutRaw({reinterpret_cast<const char*>(file.digest.data()), file.digest.size()});
  out.PutRaw(EncodeCatalog(catalog));
  return std::move(out).Take();
}

Result<ShardReceipt> ShardReceipt::Decode(std::string_view bytes) {
  ByteReader in(bytes);
  ShardReceipt receipt;
  receipt.file.name = in.GetText();
  receipt.file.bytes = in.Get<uint64_t>();
  const std::string_view digest = in.GetRaw(sizeof(cairn::Digest));
  if (!in.ok()) return Corrupt("truncated shard receipt");
  std::memcpy(receipt.file.digest.data(), digest.data(), digest.size());
  CAIRN_ASSIGN_OR_RETURN(receipt.catalog, DecodeCatalog(in.GetRaw(in.left())));
  return receipt;
}

Result<std::unique_ptr<ShardWriter>> ShardWriter::Create(FileSystem& fs, WriteRing& ring,
                                                         const std::string& directory,
                                                         const std::string& name,
                                                         const StepIdentity& identity,
                                                         const std::vector<TensorEntry>& tensors,
                                                         std::vector<Piece> pieces, Direct direct) {
  std::unique_ptr<ShardWriter> writer(new ShardWriter(ring, identity));
  const std::string path = JoinPath(directory, name);
  CAIRN_RETURN_IF_ERROR(writer->LayOut(name, tensors, std::move(pieces)).WithContext(path));
  CAIRN_ASSIGN_OR_RETURN(writer->file_, fs.Create(path, direct));
  CAIRN_RETURN_IF_ERROR(writer->file_->Allocate(writer->layout_.file_bytes));
  return writer;
}

Status ShardWriter::LayOut(const std::string& name, const std::vector<TensorEntry>& tensors,
                           std::vector<Piece> pieces) {
  catalog_.files = {name};
  sorted_at_ = Compact(catalog_, tensors, std::move(pieces));
  std::vector<H5DatasetSpec> datasets;
  for (Piece& piece : catalog_.pieces) {
    const TensorEntry& tensor = catalog_.tensors[piece.tensor];
    piece.file = 0;
    piece.stored_bytes = piece.range.size() * SizeOf(tensor.dtype);
    piece.chunks.clear();
    piece.chunks.reserve(ChunkCount(piece.stored_bytes));
    datasets.push_back({PiecePath(tensor, piece.box, piece.range), tensor.dtype, DatasetShape(piece)});
  }
  datasets.push_back({kCatalogPath, Dtype::kU8, {EncodedCatalogBytes(catalog_)}});
  CAIRN_ASSIGN_OR_RETURN(layout_, LayOutH5(datasets));
  for (size_t i = 0; i < catalog_.pieces.size(); ++i) catalog_.pieces[i].file_offset = layout_.offsets[i];
  cursors_.resize(catalog_.pieces.size());
  return OkStatus();
}

Status ShardWriter::Append(size_t given, std::span<const std::byte> bytes) {
  CAIRN_RETURN_IF_ERROR(ring_.error());
  const size_t index = sorted_at_[given];
  Cursor& cursor = cursors_[index];
  const uint64_t end = catalog_.pieces[index].stored_bytes;
  if (bytes.size() > end - cursor.appended)
    return InvalidArgument("{}: more bytes than tensor {} has here", file_->path(),
                           DisplayName(catalog_.tensors[catalog_.pieces[index].tensor]));
  while (!bytes.empty()) {
    if (!cursor.buffer) cursor.buffer = ring_.Acquire();
    const size_t count = std::min<uint64_t>(bytes.size(), ring_.buffer_bytes() - cursor.buffer->size);
    std::memcpy(cursor.buffer->data() + cursor.buffer->size, bytes.data(), count);
    Digest(index, {cursor.buffer->data() + cursor.buffer->size, count});  // while the line is in cache
    cursor.buffer->size += count;
    bytes = bytes.subspan(count);
    if (cursor.buffer->size == ring_.buffer_bytes() || cursor.appended == end) Flush(index, cursor);
  }
  return OkStatus();
}

void ShardWriter::Digest(size_t index, std::span<const std::byte> bytes) {
  Cursor& cursor = cursors_[index];
  Piece& piece = catalog_.pieces[index];
  while (!bytes.empty()) {
    const uint64_t in_chunk = cursor.appended % kChunkBytes;
    if (in_chunk == 0) {
      const uint64_t seed =
          PieceSeed(identity_.run, identity_.step, catalog_.tensors[piece.tensor], piece.box, piece.range);
      cursor.hasher = std::make_unique<Hasher>(seed + cursor.appended / kChunkBytes);
    }
    const size_t count = std::min<uint64_t>(bytes.size(), kChunkBytes - in_chunk);
    cursor.hasher->Update(bytes.first(count));
    cursor.appended += count;
    bytes = bytes.subspan(count);
    if (cursor.appended % kChunkBytes == 0 || cursor.appended == piece.stored_bytes) {
      piece.chunks.push_back(cursor.hasher->Finish());
      cursor.hasher.reset();
    }
  }
}

// The last write of a piece is padded with zeros to the end of its page.
void ShardWriter::Flush(size_t index, Cursor& cursor) {
  const uint64_t begin = cursor.appended - cursor.buffer->size;
  const uint64_t padded = PageUp(cursor.buffer->size);
  std::memset(cursor.buffer->data() + cursor.buffer->size, 0, padded - cursor.buffer->size);
  cursor.buffer->size = padded;
  ring_.Submit(file_.get(), catalog_.pieces[index].file_offset + begin, std::move(cursor.buffer));
}

// Writes what no piece covers and digests it, in order of offset. Pages between that HDF5 left unwritten stay
// zeros: the file is new, so they read as such.
Status ShardWriter::WriteFrame() {
  std::string blob = EncodeCatalog(catalog_);
  blob.resize(PageUp(blob.size()), '\0');
  const uint64_t blob_offset = layout_.offsets.back();

  std::map<uint64_t, std::string_view> extents;
  for (const H5Extent& extent : layout_.metadata) extents.emplace(extent.offset, extent.bytes);
  extents.emplace(blob_offset, blob);
  for (auto& [offset, bytes] : extents) {
    for (uint64_t done = 0; done < bytes.size();) {
      auto buffer = ring_.Acquire();
      buffer->size = std::min<uint64_t>(bytes.size() - done, ring_.buffer_bytes());
      std::memcpy(buffer->data(), bytes.data() + done, buffer->size);
      const uint64_t at = offset + done;
      done += buffer->size;
      ring_.Submit(file_.get(), at, std::move(buffer));
    }
  }

  std::vector<std::pair<uint64_t, uint64_t>> data;  // [begin, end) of each piece
  for (const Piece& piece : catalog_.pieces)
    data.emplace_back(piece.file_offset, piece.file_offset + piece.stored_bytes);
  std::sort(data.begin(), data.end());
  data.emplace_back(layout_.file_bytes, layout_.file_bytes);
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
  receipt_.digest = hasher.Finish();
  return OkStatus();
}

Result<ShardReceipt> ShardWriter::Finish() {
  for (size_t i = 0; i < cursors_.size(); ++i)
    if (cursors_[i].appended != catalog_.pieces[i].stored_bytes)
      return InvalidArgument("{}: tensor {} is incomplete, {} of {} bytes", file_->path(),
                             DisplayName(catalog_.tensors[catalog_.pieces[i].tensor]), cursors_[i].appended,
                             catalog_.pieces[i].stored_bytes);
  receipt_.name = catalog_.files[0];
  receipt_.bytes = layout_.file_bytes;
  CAIRN_RETURN_IF_ERROR(WriteFrame());
  CAIRN_RETURN_IF_ERROR(ring_.Drain());
  CAIRN_RETURN_IF_ERROR(file_->Sync());
  CAIRN_RETURN_IF_ERROR(file_->Close());
  return ShardReceipt{receipt_, catalog_};
}

}  // namespace cairn
