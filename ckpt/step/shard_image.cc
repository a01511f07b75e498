// First the envelope is filled in, apart from the catalog. Then the data goes out in windows: wait until the
// snapshot has filled one, start its write, and take its digests while that is in flight. The catalog holds
// the digests, so it comes last; it lies behind all data. The receipt is made after the sync: a receipt
// proves that the file was synced. An image that is a file's memory only gets its name, at the end.

#include "ckpt/step/shard_image.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "ckpt/codec/nonfinite.h"

namespace cairn {
namespace {

// A chunk of a piece in the image.
struct ImageChunk {
  uint64_t begin;
  uint64_t end;
  size_t piece;
  uint64_t chunk;
};

std::vector<ImageChunk> ChunksOf(const ShardPlan& plan) {
  std::vector<ImageChunk> chunks;
  for (size_t i = 0; i < plan.piece_count(); ++i) {
    const uint64_t begin = plan.OffsetOf(i), end = begin + plan.piece(i).stored_bytes;
    for (uint64_t at = begin, chunk = 0; at < end; at += kChunkBytes, ++chunk)
      chunks.push_back({at, std::min(end, at + kChunkBytes), i, chunk});
  }
  std::ranges::sort(chunks, {}, &ImageChunk::begin);
  return chunks;
}

// Fills the gaps between the pieces with zeros and with the pages that HDF5 wrote.
void FillEnvelope(const ShardPlan& plan, const std::vector<ImageChunk>& chunks, std::span<std::byte> image) {
  uint64_t at = 0;
  for (const ImageChunk& chunk : chunks) {
    std::memset(image.data() + at, 0, chunk.begin - at);
    at = chunk.end;
  }
  std::memset(image.data() + at, 0, image.size() - at);
  for (const H5Extent& extent : plan.metadata())
    std::memcpy(image.data() + extent.offset, extent.bytes.data(), extent.bytes.size());
}

class ImageWriter {
 public:
  ImageWriter(FileSystem& fs, File& file, std::span<std::byte> image, const ImageWriteOptions& options)
      : queue_(fs.NewQueue(options.queue)), file_(file), image_(image), write_bytes_(options.write_bytes) {}

  // Starts writing image[begin, end), in writes that end at multiples of write_bytes.
  Status Write(uint64_t begin, uint64_t end) {
    while (begin < end) {
      const uint64_t stop = std::min(end, (begin / write_bytes_ + 1) * write_bytes_);
      if (queue_->in_flight() == queue_->depth()) CAIRN_RETURN_IF_ERROR(queue_->Wait().status);
      queue_->Write(file_, begin, image_.subspan(begin, stop - begin), begin);
      begin = stop;
    }
    return OkStatus();
  }

  Status Drain() {
    Status first;
    while (queue_->in_flight() > 0) {
      Status status = queue_->Wait().status;
      if (first.ok()) first = std::move(status);
    }
    return first;
  }

 private:
  std::unique_ptr<IoQueue> queue_;
  File& file_;
  std::span<std::byte> image_;
  const uint64_t write_bytes_;
};

}  // namespace

Result<ShardReceipt> WriteShardImage(FileSystem& fs, const std::string& directory, ShardPlan& plan,
                                     std::span<std::byte> image, const ImageWriteOptions& options) {
  const std::string path = JoinPath(directory, plan.name());
  std::unique_ptr<File> file;
  std::optional<ImageWriter> writer;
  if (options.mapped.empty()) {
    CAIRN_ASSIGN_OR_RETURN(file, fs.Create(path, options.direct));
    CAIRN_RETURN_IF_ERROR(file->Allocate(plan.file_bytes()));
    writer.emplace(fs, *file, image, options);
  }
  const std::vector<ImageChunk> chunks = ChunksOf(plan);
  FillEnvelope(plan, chunks, image);
  uint64_t nonfinite = 0;
  auto next = chunks.begin();
  const uint64_t data_end = plan.catalog_offset();
  for (uint64_t at = 0; at < data_end;) {
    const uint64_t end = std::min(data_end, at + options.write_bytes);
    if (options.wait_for) CAIRN_RETURN_IF_ERROR(options.wait_for(end));
    if (writer) CAIRN_RETURN_IF_ERROR(writer->Write(at, end));
    for (; next != chunks.end() && next->end <= end; ++next) {
      const std::span<const std::byte> bytes = image.subspan(next->begin, next->end - next->begin);
      nonfinite += CountNonFinite(plan.tensor(next->piece).dtype, bytes);
      if (options.take_digests)
        plan.SetDigest(next->piece, next->chunk, DigestOf(bytes, plan.ChunkSeed(next->piece, next->chunk)));
    }
    at = end;
  }
  const std::string own_catalog = plan.EncodeOwnCatalog();
  std::memcpy(image.data() + data_end, own_catalog.data(), own_catalog.size());
  if (writer) {
    CAIRN_RETURN_IF_ERROR(writer->Write(data_end, image.size()));
    CAIRN_RETURN_IF_ERROR(writer->Drain());
    CAIRN_RETURN_IF_ERROR(file->Sync());
    CAIRN_RETURN_IF_ERROR(file->Close());
  } else {
    CAIRN_RETURN_IF_ERROR(fs.AddName(options.mapped, path));
  }
  return ShardReceipt{plan.EntryOf(own_catalog), plan.catalog(), nonfinite};
}

}  // namespace cairn
