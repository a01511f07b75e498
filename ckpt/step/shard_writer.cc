// A page belongs either to one piece or to the envelope, which is everything that no piece covers. Pieces are
// written as they come; the envelope, which holds the digests of the pieces, is written by Finish().
#include "ckpt/step/shard_writer.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

constexpr uint64_t kDigestBytes = 256 << 10;  // copied, then digested out of the second-level cache

}  // namespace

Result<std::unique_ptr<ShardWriter>> ShardWriter::Create(FileSystem& fs, WriteRing& ring,
                                                         const std::string& directory, ShardContents contents,
                                                         Direct direct, Existing existing) {
  const std::string path = JoinPath(directory, contents.name());
  Result<ShardPlan> plan = ShardPlan::Make(std::move(contents));
  if (!plan.ok()) return plan.status().WithContext(path);
  std::unique_ptr<ShardWriter> writer(new ShardWriter(ring, std::move(plan).value()));
  Result<std::unique_ptr<File>> file = fs.Create(path, direct);
  if (existing == Existing::kResume && file.status().kind() == StatusKind::kAlreadyExists)
    file = fs.OpenForWrite(path, direct);
  if (!file.ok()) return file.status();
  writer->file_ = std::move(file).value();
  CAIRN_RETURN_IF_ERROR(writer->file_->Allocate(writer->file_bytes()));
  return writer;
}

Status ShardWriter::Append(size_t piece, std::span<const std::byte> bytes) {
  Cursor& cursor = cursors_[piece];
  const uint64_t end = plan_.piece(piece).stored_bytes;
  if (bytes.size() > end - cursor.appended)
    return InvalidArgument("{}: more bytes than tensor {} has here", file_->path(),
                           DisplayName(plan_.tensor(piece)));
  while (!bytes.empty()) {
    if (!cursor.buffer) {
      CAIRN_RETURN_IF_ERROR(ring_.error());
      cursor.buffer = ring_.Acquire();
    }
    const size_t count = std::min({bytes.size(), ring_.buffer_bytes() - cursor.buffer->size,
                                   kDigestBytes - (cursor.appended - cursor.digested)});
    std::memcpy(cursor.buffer->data() + cursor.buffer->size, bytes.data(), count);
    cursor.buffer->size += count;
    cursor.appended += count;
    bytes = bytes.subspan(count);
    const bool full = cursor.buffer->size == ring_.buffer_bytes() || cursor.appended == end;
    if (full || cursor.appended - cursor.digested == kDigestBytes) Digest(piece);
    if (full) Flush(piece, cursor);
  }
  return OkStatus();
}

// What was appended since the last time.
void ShardWriter::Digest(size_t piece) {
  Cursor& cursor = cursors_[piece];
  const std::byte* next = cursor.buffer->data() + cursor.buffer->size - (cursor.appended - cursor.digested);
  while (cursor.digested < cursor.appended) {
    const uint64_t chunk = cursor.digested / kChunkBytes;
    const uint64_t in_chunk = cursor.digested % kChunkBytes;
    if (in_chunk == 0) cursor.hasher = std::make_unique<Hasher>(plan_.ChunkSeed(piece, chunk));
    const size_t count = std::min(cursor.appended - cursor.digested, kChunkBytes - in_chunk);
    cursor.hasher->Update({next, count});
    cursor.digested += count;
    next += count;
    if (cursor.digested % kChunkBytes == 0 || cursor.digested == plan_.piece(piece).stored_bytes) {
      plan_.SetDigest(piece, chunk, cursor.hasher->Finish());
      cursor.hasher.reset();
    }
  }
}

// The last write of a piece is padded with zeros to the end of its page.
void ShardWriter::Flush(size_t piece, Cursor& cursor) {
  const uint64_t begin = cursor.appended - cursor.buffer->size;
  const uint64_t padded = PageUp(cursor.buffer->size);
  std::memset(cursor.buffer->data() + cursor.buffer->size, 0, padded - cursor.buffer->size);
  cursor.buffer->size = padded;
  ring_.Submit(file_.get(), plan_.OffsetOf(piece) + begin, std::move(cursor.buffer));
}

void ShardWriter::Restore(size_t piece, std::span<const cairn::Digest> chunks) {
  cursors_[piece].appended = cursors_[piece].digested = plan_.piece(piece).stored_bytes;
  for (size_t i = 0; i < chunks.size(); ++i) plan_.SetDigest(piece, i, chunks[i]);
}

Result<ShardReceipt> ShardWriter::Finish() {
  for (size_t i = 0; i < cursors_.size(); ++i)
    if (cursors_[i].appended != plan_.piece(i).stored_bytes)
      return InvalidArgument("{}: tensor {} is incomplete, {} of {} bytes", file_->path(),
                             DisplayName(plan_.tensor(i)), cursors_[i].appended, plan_.piece(i).stored_bytes);
  const std::string own_catalog = plan_.EncodeOwnCatalog();
  for (const H5Extent& extent : plan_.metadata())
    WriteExtent(ring_, file_.get(), extent.offset, extent.bytes);
  WriteExtent(ring_, file_.get(), plan_.catalog_offset(), own_catalog);
  CAIRN_RETURN_IF_ERROR(ring_.Drain());
  CAIRN_RETURN_IF_ERROR(file_->Sync());
  CAIRN_RETURN_IF_ERROR(file_->Close());
  ManifestFile entry = plan_.EntryOf(own_catalog);
  return ShardReceipt{std::move(entry), std::move(plan_.catalog())};
}

}  // namespace cairn
