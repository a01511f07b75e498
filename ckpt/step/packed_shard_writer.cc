// Chunks become numbered jobs in the order in which they come. The workers encode jobs side by side, but
// append the results in the order of the numbers; so the file does not depend on the number of threads.
// Finish() waits for all jobs, puts the catalog behind the stream, and lets HDF5 describe the chunks where
// they already lie: its metadata goes into the gap before the data and behind it. A piece is joined with
// another one in all of its chunks or in none, so it is examined first.

#include "ckpt/step/packed_shard_writer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "ckpt/codec/derived_weight.h"
#include "ckpt/codec/nonfinite.h"
#include "ckpt/codec/plane_codec.h"
#include "ckpt/model/layout.h"

namespace cairn {

struct PackedShardWriter::Worker {
  PlaneEncoder encoder;
  std::vector<std::byte> low;
};

Result<std::unique_ptr<PackedShardWriter>> PackedShardWriter::Create(FileSystem& fs, WriteRing& ring,
                                                                     const std::string& directory,
                                                                     ShardContents contents,
                                                                     const PackOptions& options) {
  uint64_t most = kH5HeadBytes;
  for (size_t i = 0; i < contents.piece_count(); ++i)
    most += DecodedBytes(contents.piece(i), contents.tensor(i).dtype);
  std::unique_ptr<PackedShardWriter> writer(new PackedShardWriter(ring, std::move(contents), options));
  CAIRN_ASSIGN_OR_RETURN(writer->file_,
                         fs.Create(JoinPath(directory, writer->contents_.name()), options.direct));
  CAIRN_RETURN_IF_ERROR(writer->file_->Allocate(PageUp(most)));
  writer->out_.emplace(ring, writer->file_.get(), kH5HeadBytes);
  return writer;
}

PackedShardWriter::PackedShardWriter(WriteRing& ring, ShardContents contents, const PackOptions& options)
    : ring_(ring),
      contents_(std::move(contents)),
      encode_(options.encode),
      appended_(contents_.piece_count()),
      pool_(options.threads, 2 * static_cast<size_t>(std::max(1, options.threads))) {
  workers_.resize(pool_.workers());
  for (Piece& piece : contents_.catalog().pieces) {
    piece.codec = Codec::kShuffleZstd;
    piece.file_offset = piece.stored_bytes = 0;
    piece.stored.assign(piece.chunks.size(), {});
  }
}

PackedShardWriter::~PackedShardWriter() {
  (void)pool_.Finish();
  (void)ring_.Drain();  // writes in flight refer to the file
}

Status PackedShardWriter::Append(size_t piece, std::span<const std::byte> bytes) {
  CAIRN_RETURN_IF_ERROR(ring_.error());
  uint64_t& appended = appended_[piece];
  const uint64_t left = DecodedBytes(contents_.piece(piece), contents_.tensor(piece).dtype) - appended;
  if (bytes.size() > left || (bytes.size() < left && bytes.size() % kChunkBytes != 0))
    return InvalidArgument("{}: {} bytes are not whole chunks of tensor {}, or not the next ones",
                           file_->path(), bytes.size(), DisplayName(contents_.tensor(piece)));
  while (!bytes.empty()) {
    const size_t count = std::min<uint64_t>(bytes.size(), kChunkBytes);
    Enqueue({.piece = piece, .chunk = appended / kChunkBytes, .bytes = bytes.first(count)});
    appended += count;
    bytes = bytes.subspan(count);
  }
  return OkStatus();
}

// All chunks or none, since a dataset of HDF5 holds either elements or halves: checked first, then stored.
Status PackedShardWriter::AppendSplit(size_t master, std::span<const std::byte> weight,
                                      std::span<const std::byte> bytes) {
  Piece& piece = contents_.piece(master);
  const TensorEntry& tensor = contents_.tensor(master);
  if (tensor.role != Role::kMaster || tensor.dtype != Dtype::kF32 || appended_[master] != 0 ||
      bytes.size() != DecodedBytes(piece, tensor.dtype) || weight.size() * 2 != bytes.size())
    return InvalidArgument("{}: tensor {} is not a whole master", file_->path(), DisplayName(tensor));
  const auto weight_of = [&](uint64_t chunk, size_t count) {
    return weight.subspan(chunk * kChunkBytes / 2, count / 2);
  };
  std::vector<std::byte> low(std::min<uint64_t>(kChunkBytes, bytes.size()) / 2);
  std::vector<MasterException> exceptions;
  for (uint64_t chunk = 0; chunk < piece.chunks.size(); ++chunk) {
    const auto part = bytes.subspan(chunk * kChunkBytes, DecodedChunkBytes(bytes.size(), chunk));
    if (!SplitMaster(weight_of(chunk, part.size()), part, std::span(low).first(part.size() / 2),
                     MaxMasterExceptions(part.size() / 4), exceptions))
      return Append(master, bytes);
  }
  piece.codec = Codec::kMasterLow;
  for (uint64_t chunk = 0; chunk < piece.chunks.size(); ++chunk) {
    CAIRN_RETURN_IF_ERROR(ring_.error());
    const auto part = bytes.subspan(chunk * kChunkBytes, DecodedChunkBytes(bytes.size(), chunk));
    Enqueue({.piece = master, .chunk = chunk, .bytes = part, .weight = weight_of(chunk, part.size())});
    appended_[master] += part.size();
  }
  return OkStatus();
}

// All chunks or none, here too: a derived piece has no stored bytes.
Status PackedShardWriter::AppendDerived(size_t weight, std::span<const std::byte> master,
                                        std::span<const std::byte> bytes) {
  Piece& piece = contents_.piece(weight);
  const TensorEntry& tensor = contents_.tensor(weight);
  if (tensor.role != Role::kWeight || tensor.dtype != Dtype::kF16 || appended_[weight] != 0 ||
      bytes.size() != DecodedBytes(piece, tensor.dtype) || master.size() != bytes.size() * 2)
    return InvalidArgument("{}: tensor {} is not a whole fp16 weight", file_->path(), DisplayName(tensor));
  uint64_t nonfinite = 0;
  std::vector<StoredChunk> stored;
  std::vector<MasterException> all, exceptions;
  for (uint64_t chunk = 0; chunk < piece.chunks.size(); ++chunk) {
    const auto part = bytes.subspan(chunk * kChunkBytes, DecodedChunkBytes(bytes.size(), chunk));
    if (!FindUnderived(master.subspan(chunk * kChunkBytes * 2, part.size() * 2), part,
                       MaxMasterExceptions(part.size() / 2), exceptions))
      return Append(weight, bytes);
    stored.push_back({.encoded = true,
                      .first_exception = static_cast<uint32_t>(all.size()),
                      .exceptions = static_cast<uint32_t>(exceptions.size())});
    all.insert(all.end(), exceptions.begin(), exceptions.end());
    piece.chunks[chunk] = DigestOf(part, contents_.ChunkSeed(weight, chunk));
    nonfinite += CountNonFinite(tensor.dtype, part);
  }
  {
    const std::lock_guard lock(mutex_);
    nonfinite_ += nonfinite;
  }
  piece.codec = Codec::kDerived;
  piece.stored = std::move(stored);
  piece.exceptions = std::move(all);
  appended_[weight] = bytes.size();
  return OkStatus();
}

void PackedShardWriter::Enqueue(Job job) {
  job.number = next_number_++;
  (void)pool_.Push([this, shared = std::make_shared<Job>(std::move(job))](size_t worker) {
    Encode(*shared, workers_[worker]);
    return OkStatus();
  });
}

// Encodes next to the other workers, then waits for its turn to write.
void PackedShardWriter::Encode(Job& job, Worker& worker) {
  const uint64_t seed = contents_.ChunkSeed(job.piece, job.chunk);
  const Digest digest = DigestOf(job.bytes, seed);
  const uint64_t nonfinite = CountNonFinite(contents_.tensor(job.piece).dtype, job.bytes);
  StoredChunk place;
  std::span<const std::byte> stored;
  if (!job.weight.empty()) {
    worker.low.resize(job.weight.size());
    SplitMaster(job.weight, job.bytes, worker.low, MaxMasterExceptions(worker.low.size() / 2),
                job.exceptions);
    stored = worker.low;
  } else if (encode_) {
    stored = worker.encoder.Encode(job.bytes, SizeOf(contents_.tensor(job.piece).dtype));
  }
  place.encoded = !stored.empty();
  if (!place.encoded) stored = job.bytes;
  place.digest = place.encoded ? DigestOf(stored, seed) : digest;
  std::unique_lock lock(mutex_);
  contents_.piece(job.piece).chunks[job.chunk] = digest;
  nonfinite_ += nonfinite;
  placed_.wait(lock, [&] { return next_placed_ == job.number; });
  Place(job, place, stored);
  ++next_placed_;
  placed_.notify_all();
}

void PackedShardWriter::Place(const Job& job, StoredChunk place, std::span<const std::byte> stored) {
  Piece& piece = contents_.piece(job.piece);
  place.file_offset = out_->offset();
  place.bytes = static_cast<uint32_t>(stored.size());
  place.first_exception = static_cast<uint32_t>(piece.exceptions.size());  // its chunks come in order
  place.exceptions = static_cast<uint32_t>(job.exceptions.size());
  piece.exceptions.insert(piece.exceptions.end(), job.exceptions.begin(), job.exceptions.end());
  piece.stored[job.chunk] = place;
  if (job.chunk == 0) piece.file_offset = place.file_offset;
  piece.stored_bytes += stored.size();
  out_->Append(stored);
}

Result<H5Layout> PackedShardWriter::LayOut(uint64_t catalog_offset, uint64_t catalog_bytes) {
  const Catalog& catalog = contents_.catalog();
  std::vector<H5PackedDataset> datasets;
  for (const Piece& piece : catalog.pieces) {
    if (piece.codec == Codec::kDerived) continue;
    const TensorEntry& tensor = catalog.tensors[piece.tensor];
    const bool low = piece.codec == Codec::kMasterLow;
    const std::string base = low ? LowHalvesPath(tensor) : TensorPath(tensor);
    auto next = piece.stored.begin();
    for (const FlatRange part : PackedParts(piece, tensor.dtype)) {
      H5PackedDataset dataset{PackedPath(base, piece.box, part.begin),
                              low ? Dtype::kI16 : tensor.dtype,
                              part.size(),
                              std::min(part.size(), kChunkBytes / SizeOf(tensor.dtype)),
                              !low,
                              {}};
      for (uint64_t i = 0; i < dataset.elements / dataset.chunk_elements; ++i, ++next)
        dataset.chunks.push_back({next->file_offset, next->bytes, next->encoded});
      datasets.push_back(std::move(dataset));
    }
  }
  return LayOutPackedH5(datasets, {kCatalogPath, Dtype::kU8, {catalog_bytes}}, catalog_offset,
                        catalog_offset + PageUp(catalog_bytes));
}

Result<ShardReceipt> PackedShardWriter::Finish() {
  CAIRN_RETURN_IF_ERROR(pool_.Finish());
  for (size_t i = 0; i < appended_.size(); ++i) {
    const uint64_t end = DecodedBytes(contents_.piece(i), contents_.tensor(i).dtype);
    if (appended_[i] != end)
      return InvalidArgument("{}: tensor {} is incomplete, {} of {} bytes", file_->path(),
                             DisplayName(contents_.tensor(i)), appended_[i], end);
  }
  out_->FlushPage();
  const uint64_t catalog_offset = out_->offset();
  std::string own_catalog = EncodeCatalog(contents_.catalog());
  Result<H5Layout> layout = LayOut(catalog_offset, own_catalog.size());
  if (!layout.ok()) return layout.status().WithContext(file_->path());
  own_catalog.resize(PageUp(own_catalog.size()));
  WriteExtent(ring_, file_.get(), catalog_offset, own_catalog);
  for (const H5Extent& extent : layout->metadata)
    WriteExtent(ring_, file_.get(), extent.offset, extent.bytes);
  CAIRN_RETURN_IF_ERROR(ring_.Drain());
  CAIRN_RETURN_IF_ERROR(file_->Allocate(layout->file_bytes));
  CAIRN_RETURN_IF_ERROR(file_->Sync());
  CAIRN_RETURN_IF_ERROR(file_->Close());
  const Digest envelope = EnvelopeDigest(contents_.catalog(), *layout, catalog_offset, own_catalog);
  return ShardReceipt{{contents_.name(), layout->file_bytes, envelope}, contents_.catalog(), nonfinite_};
}

namespace {

// Maps each piece that another one can rebuild to that piece, of the same elements: an fp32 master to its
// bf16 weight, an fp16 weight to its fp32 master.
std::map<size_t, size_t> OthersOfPieces(const ShardPlan& plan) {
  std::map<std::string_view, std::vector<size_t>> weights;  // by parameter
  for (size_t i = 0; i < plan.piece_count(); ++i)
    if (plan.tensor(i).role == Role::kWeight) weights[plan.tensor(i).spec.name].push_back(i);
  std::map<size_t, size_t> found;
  for (size_t i = 0; i < plan.piece_count(); ++i) {
    if (plan.tensor(i).role != Role::kMaster || plan.tensor(i).dtype != Dtype::kF32) continue;
    for (const size_t weight : weights[plan.tensor(i).spec.name]) {
      if (plan.piece(weight).box != plan.piece(i).box || plan.piece(weight).range != plan.piece(i).range)
        continue;
      if (plan.tensor(weight).dtype == Dtype::kBF16) found.emplace(i, weight);
      if (plan.tensor(weight).dtype == Dtype::kF16) found.emplace(weight, i);
    }
  }
  return found;
}

}  // namespace

Result<ShardReceipt> WritePackedImage(FileSystem& fs, const std::string& directory, const ShardPlan& plan,
                                      std::span<const std::byte> image, const PackImageOptions& options) {
  WriteRing ring(fs, options.ring);
  CAIRN_ASSIGN_OR_RETURN(const auto writer,
                         PackedShardWriter::Create(fs, ring, directory, plan, options.pack));
  const auto bytes_of = [&](size_t piece) {
    return image.subspan(plan.OffsetOf(piece), plan.piece(piece).stored_bytes);
  };
  const auto wait_for = [&](std::span<const std::byte> bytes) {
    if (options.wait_for) options.wait_for(bytes.data() + bytes.size() - image.data());
  };
  const std::map<size_t, size_t> others =
      options.split_master ? OthersOfPieces(plan) : std::map<size_t, size_t>();
  std::vector<size_t> order(plan.piece_count());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t i) { return plan.OffsetOf(i); });
  for (const size_t i : order) {
    const std::span<const std::byte> bytes = bytes_of(i);
    if (const auto found = others.find(i); found != others.end()) {
      const std::span<const std::byte> other = bytes_of(found->second);
      wait_for(bytes);
      wait_for(other);
      CAIRN_RETURN_IF_ERROR(plan.tensor(i).role == Role::kMaster ? writer->AppendSplit(i, other, bytes)
                                                                 : writer->AppendDerived(i, other, bytes));
      continue;
    }
    for (uint64_t at = 0; at < bytes.size(); at += kChunkBytes) {
      const auto part = bytes.subspan(at, DecodedChunkBytes(bytes.size(), at / kChunkBytes));
      wait_for(part);
      CAIRN_RETURN_IF_ERROR(writer->Append(i, part));
    }
  }
  return writer->Finish();
}

}  // namespace cairn
