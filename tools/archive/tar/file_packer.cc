// A file is cut into segments of one element type, and segments into chunks. The thread that reads the file
// fills a chunk, submits it to the pool, and emits finished chunks oldest first. Frames therefore come in the
// order of the file, and about two chunks for each thread are in memory. A master's chunk is first tried as
// low halves, completed by its bf16 weights; if those cannot be read, or too many elements differ, the chunk
// is packed whole. A chunk that does not shrink becomes a raw frame, so PackedBytesAtMost is a true bound.

#include "tools/archive/tar/file_packer.h"

#include <algorithm>

#include "ckpt/base/dtype.h"
#include "ckpt/model/catalog.h"
#include "ckpt/model/piece.h"
#include "ckpt/model/tensor.h"

namespace cairn {
namespace {

constexpr uint64_t kSmallBytes = 64 << 10;    // parts below are merged
constexpr uint64_t kMergedBytes = 256 << 10;  // up to this: a reader of one of them reads them all
constexpr size_t kSniffBytes = 64 << 10;

// Finds a master's weights: the piece of the weight with the same box that holds the whole range.
void FindWeights(const StepCatalog& catalog, const Piece& piece, PackSegment& segment) {
  const TensorEntry& tensor = catalog.tensors[piece.tensor];
  if (tensor.role != Role::kMaster || tensor.dtype != Dtype::kF32) return;
  const auto weight = catalog.Find(tensor.spec.name, Role::kWeight);
  if (!weight.ok() || catalog.tensors[*weight].dtype != Dtype::kBF16) return;
  const auto [first, last] = catalog.PiecesOfTensor(*weight);
  for (size_t i = first; i < last; ++i) {
    const Piece candidate = catalog.pieces[i];
    if (candidate.codec != Codec::kNone || candidate.box != piece.box ||
        candidate.range.begin > piece.range.begin || candidate.range.end < piece.range.end)
      continue;
    segment.weight_file = catalog.files[candidate.file];
    segment.weight_offset =
        candidate.file_offset + (piece.range.begin - candidate.range.begin) * SizeOf(Dtype::kBF16);
    return;
  }
}

void AddSegment(std::vector<PackSegment>& segments, PackSegment next) {
  if (next.begin == next.end) return;
  if (!segments.empty()) {
    PackSegment& last = segments.back();
    if (last.end - last.begin + (next.end - next.begin) <= kMergedBytes &&
        std::min(last.end - last.begin, next.end - next.begin) < kSmallBytes) {
      const bool takes_type = next.end - next.begin > last.end - last.begin;
      last.element_bytes = takes_type ? next.element_bytes : last.element_bytes;
      last.end = next.end;
      last.weight_file.clear();
      return;
    }
  }
  segments.push_back(std::move(next));
}

// The element size that makes a sample of the chunk smallest.
uint8_t SniffElementBytes(PlaneEncoder& encoder, std::span<const std::byte> chunk) {
  const auto sample = chunk.first(std::min(chunk.size(), kSniffBytes));
  uint8_t best = 1;
  size_t least = sample.size();
  for (const uint8_t element_bytes : {1, 2, 4})
    if (const auto out = encoder.Encode(sample, element_bytes); !out.empty() && out.size() < least) {
      least = out.size();
      best = element_bytes;
    }
  return best;
}

}  // namespace

struct PackPool::Encoder {
  PlaneEncoder planes;
  std::vector<std::byte> weights, low;

  void Encode(PackPool::Job& job) {
    job.stored.clear();
    job.exceptions.clear();
    job.frame = {.bytes = static_cast<uint32_t>(job.input.size())};
    std::span<const std::byte> content = job.input;
    uint8_t element_bytes = job.element_bytes;
    if (TrySplit(job)) {
      content = low;
      element_bytes = 2;
      job.frame.low_halves = true;
    } else if (job.sniff) {
      element_bytes = SniffElementBytes(planes, content);
    }
    const auto encoded = planes.Encode(content, element_bytes);
    if (encoded.empty()) {
      element_bytes = 1;
      AppendRawFrame(content, job.stored);
    } else {
      job.stored.assign(encoded.begin(), encoded.end());
    }
    job.frame.element_bytes = element_bytes;
    job.frame.stored_bytes = static_cast<uint32_t>(job.stored.size());
  }

  // Weights that cannot be read are not a failure: the master is stored whole then.
  bool TrySplit(PackPool::Job& job) {
    if (!job.weights || job.input.size() % 4 != 0) return false;
    weights.resize(job.input.size() / 2);
    low.resize(job.input.size() / 2);
    const size_t elements = job.input.size() / 4;
    if (job.weights(weights).ok() &&
        SplitMaster(weights, job.input, low, MaxMasterExceptions(elements), job.exceptions))
      return true;
    job.exceptions.clear();
    return false;
  }
};

std::vector<PackSegment> SegmentsOf(const StepCatalog& catalog, const ManifestFile& file) {
  const auto found = std::ranges::find(catalog.files, file.name);
  const auto index = static_cast<uint32_t>(found - catalog.files.begin());
  std::vector<PackSegment> pieces;
  for (size_t i = 0; i < catalog.pieces.size(); ++i) {
    if (catalog.pieces.FileOf(i) != index) continue;
    const Piece piece = catalog.pieces[i];
    if (piece.codec != Codec::kNone) continue;  // packed by the step itself
    const auto element_bytes = static_cast<uint8_t>(SizeOf(catalog.tensors[piece.tensor].dtype));
    PackSegment segment{piece.file_offset, piece.file_offset + piece.stored_bytes, element_bytes, "", 0};
    FindWeights(catalog, piece, segment);
    pieces.push_back(std::move(segment));
  }
  std::ranges::sort(pieces, {}, &PackSegment::begin);
  std::vector<PackSegment> segments;
  uint64_t at = 0;
  for (PackSegment& piece : pieces) {
    if (piece.begin < at || piece.end > file.bytes) continue;  // replicas that share bytes
    AddSegment(segments, {at, piece.begin, 1, "", 0});
    at = piece.end;
    AddSegment(segments, std::move(piece));
  }
  AddSegment(segments, {at, file.bytes, 1, "", 0});
  return segments;
}

std::vector<PackSegment> UnknownSegments(uint64_t bytes) {
  std::vector<PackSegment> segments;
  if (bytes > 0) segments.push_back({0, bytes, 0, "", 0});
  return segments;
}

uint64_t PackedBytesAtMost(const std::vector<PackSegment>& segments) {
  uint64_t bytes = 0, frames = 0, names = 0, masters = 0;
  for (const PackSegment& segment : segments) {
    bytes += segment.end - segment.begin;
    frames += (segment.end - segment.begin) / kMaxCodecChunkBytes + 1;
    if (segment.weight_file.empty()) continue;
    names += segment.weight_file.size() + 2;
    masters += (segment.end - segment.begin) / 4;
  }
  constexpr uint64_t kFrameOverhead = 128;
  return bytes + frames * kFrameOverhead +
         PackedTailBytesAtMost(frames, MaxMasterExceptions(masters) + 8 * frames, names);
}

PackPool::PackPool(int threads) : pool_(threads) { encoders_.resize(pool_.workers()); }

PackPool::~PackPool() = default;

std::future<void> PackPool::Submit(Job& job) {
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> result = done->get_future();
  (void)pool_.Push([this, &job, done = std::move(done)](size_t worker) {
    encoders_[worker].Encode(job);
    done->set_value();
    return OkStatus();
  });
  return result;
}

FilePacker::FilePacker(PackPool& pool, std::vector<PackSegment> segments, WeightReader weights, Emit emit)
    : pool_(pool), segments_(std::move(segments)), weights_(std::move(weights)), emit_(std::move(emit)) {}

FilePacker::~FilePacker() {
  for (const Running& running : running_) running.done.wait();
}

void FilePacker::StartJob() {
  if (idle_.empty()) {
    current_ = std::make_unique<PackPool::Job>();
  } else {
    current_ = std::move(idle_.back());
    idle_.pop_back();
  }
  const PackSegment& segment = segments_[segment_];
  current_bytes_ = std::min<uint64_t>(segment.end - at_, kMaxCodecChunkBytes);
  current_->input.clear();
  current_->input.reserve(current_bytes_);
  current_->sniff = segment.element_bytes == 0;
  current_->element_bytes = std::max<uint8_t>(1, segment.element_bytes);
  current_->weights = {};
  if (segment.weight_file.empty()) return;
  const uint64_t offset = segment.weight_offset + (at_ - segment.begin) / 2;
  auto name = std::ranges::find(table_.names, segment.weight_file);
  if (name == table_.names.end()) name = table_.names.insert(name, segment.weight_file);
  current_->weight_name = static_cast<uint32_t>(name - table_.names.begin());
  current_->weight_offset = offset;
  current_->weights = [this, file = segment.weight_file, offset](std::span<std::byte> out) {
    return weights_(file, offset, out);
  };
}

Status FilePacker::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (segment_ == segments_.size()) return InvalidArgument("more bytes than announced for the file");
    if (!current_) StartJob();
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), current_bytes_ - current_->input.size()));
    current_->input.insert(current_->input.end(), part.begin(), part.end());
    at_ += part.size();
    bytes = bytes.subspan(part.size());
    if (current_->input.size() < current_bytes_) continue;
    std::future<void> done = pool_.Submit(*current_);
    running_.push_back({std::move(current_), std::move(done)});
    if (at_ == segments_[segment_].end) ++segment_;
    const size_t most = 2 * pool_.workers() + 2;
    while (running_.size() > most) CAIRN_RETURN_IF_ERROR(EmitFront());
  }
  return OkStatus();
}

Status FilePacker::EmitFront() {
  PackPool::Job& job = *running_.front().job;
  running_.front().done.wait();
  PackedFrame frame = job.frame;
  if (frame.low_halves) {
    frame.weight_name = job.weight_name;
    frame.weight_offset = job.weight_offset;
    frame.first_exception = static_cast<uint32_t>(table_.exceptions.size());
    frame.exceptions = static_cast<uint32_t>(job.exceptions.size());
    table_.exceptions.insert(table_.exceptions.end(), job.exceptions.begin(), job.exceptions.end());
  }
  table_.frames.push_back(frame);
  table_.bytes += frame.bytes;
  const Status status = emit_(job.stored);
  idle_.push_back(std::move(running_.front().job));
  running_.pop_front();
  return status;
}

Status FilePacker::Finish() {
  while (!running_.empty()) CAIRN_RETURN_IF_ERROR(EmitFront());
  if (segment_ != segments_.size()) return InvalidArgument("fewer bytes than announced for the file");
  const std::string tail = EncodePackedTail(table_);
  return emit_(std::as_bytes(std::span(tail)));
}

}  // namespace cairn
