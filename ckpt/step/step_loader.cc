// Plan() lists the pieces that the requests need, in order of their place in the files. The workers take
// extents from the front of this list, under one lock: needed chunks of one file, with small gaps at most. An
// extent that is mostly in the page cache is delivered at once, any other is read in the background; the next
// read starts before a finished one is delivered. A chunk is decoded and verified once, for all requests that
// want it. An extent that is one plain chunk with one place is read into that place and verified there; that
// is why a failed load leaves `out` unspecified.

#include "ckpt/step/step_loader.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ckpt/base/threads.h"
#include "ckpt/io/page_cache.h"
#include "ckpt/io/stream_copy.h"

namespace cairn {
namespace {

constexpr uint64_t kMinMapBytes = 256 << 10;    // below it a mapping costs more than a copy
constexpr uint64_t kBytesPerThread = 16 << 20;  // less work than this is not worth another thread
constexpr size_t kStreamRunBytes = 1 << 10;     // shorter runs are copied through the cache

// Memory of one read, aligned for O_DIRECT.
class PageBuffer {
 public:
  std::span<std::byte> Get(size_t bytes) {
    if (bytes > size_) {
      size_ = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
      data_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, size_)));
      ::madvise(data_.get(), size_,
                MADV_HUGEPAGE);  // fewer first uses of a page; no harm where it is refused
    }
    return {data_.get(), bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

// Elements of `box` that a piece holds.
uint64_t CommonVolume(const Piece& piece, const Box& box) {
  const std::optional<Box> meet = Intersect(piece.box, box);
  if (!meet) return 0;
  if (piece.range.size() == piece.box.Volume()) return meet->Volume();
  uint64_t volume = 0;
  for (const Segment& segment : Decompose(piece.box, piece.range))
    if (const std::optional<Box> common = Intersect(segment.box, box)) volume += common->Volume();
  return volume;
}

bool Meets(const Piece& piece, const ChunkPlace& place, const Box& box) {
  return std::ranges::any_of(Decompose(piece.box, place.elements),
                             [&](const Segment& segment) { return Intersect(segment.box, box).has_value(); });
}

// True where `inner` is one run of `outer`'s row-major order, which contains it.
bool IsOneRun(const Box& outer, const Box& inner) {
  Dims last = inner.offset;
  for (int i = 0; i < inner.rank(); ++i) last[i] += inner.extent[i] - 1;
  return FlatIndex(outer, last) - FlatIndex(outer, inner.offset) + 1 == inner.Volume();
}

// Copies what `request` wants of `elements` of a piece, whose values are `values`.
void Scatter(const Piece& piece, FlatRange elements, std::span<const std::byte> values,
             uint64_t element_bytes, const ReadRequest& request) {
  for (const Segment& segment : Decompose(piece.box, elements)) {
    const std::optional<Box> common = Intersect(segment.box, request.box);
    if (!common) continue;
    ForEachRun(*common, segment.box, request.box, [&](uint64_t source, uint64_t target, uint64_t count) {
      const auto run = values.subspan((segment.begin + source) * element_bytes, count * element_bytes);
      std::byte* to = request.out.data() + target * element_bytes;
      if (to == run.data()) return;  // it was read in place
      if (run.size() < kStreamRunBytes) {
        std::memcpy(to, run.data(), run.size());
      } else {
        StreamCopy(to, run);
      }
    });
  }
}

}  // namespace

// One thread's share: what is in the page cache is delivered at once, the rest read in the background.
class StepLoader::Worker {
 public:
  Worker(StepLoader& loader, int depth) : loader_(loader), depth_(depth), slots_(depth + 1) {
    for (Slot& slot : slots_) free_.push_back(&slot);
  }

  Status Run() {
    CAIRN_RETURN_IF_ERROR(Refill());
    while (queue_ && queue_->in_flight() > 0) {
      const IoQueue::Completion done = queue_->Wait();
      Slot& slot = slots_[done.tag];
      if (!done.status.ok()) return Named(done.status, slot.extent);
      CAIRN_RETURN_IF_ERROR(Refill());  // first, so that the disk is not kept waiting
      CAIRN_RETURN_IF_ERROR(Deliver(slot.extent, slot.stored));
      slot.file.reset();
      free_.push_back(&slot);
    }
    return OkStatus();
  }

 private:
  struct Slot {  // a read on its way
    Extent extent;
    std::shared_ptr<File> file;
    PageBuffer buffer;
    std::span<const std::byte> stored;  // of the extent, once it is read
  };

  // Goes on until as many reads are on their way as there may be, or nothing is left to begin.
  Status Refill() {
    while (!queue_ || queue_->in_flight() < depth_) {
      std::optional<Extent> extent = loader_.NextExtent();
      if (!extent) break;
      CAIRN_RETURN_IF_ERROR(Begin(std::move(*extent)));
    }
    return OkStatus();
  }

  Status Begin(Extent extent) {
    const std::string& name = loader_.catalog_.files[extent.file];
    const uint64_t bytes = extent.end - extent.begin;
    CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<File> file, loader_.files_.Get(name, Direct::kOff));
    Direct direct = loader_.options_.direct;
    if (direct != Direct::kOn) {
      const std::optional<uint64_t> cached = CachedBytes(*file, extent.begin, bytes);
      if (cached && *cached >= bytes / 2) return DeliverCached(extent, *file);
      if (!cached) direct = Direct::kOff;
    }
    // The last page of a file that does not end with a page cannot be read past the cache.
    if (direct != Direct::kOff && PageUp(extent.end) <= loader_.file_bytes_[extent.file]) {
      CAIRN_ASSIGN_OR_RETURN(file, loader_.files_.Get(name, direct));
    }
    StartRead(std::move(extent), std::move(file));
    return OkStatus();
  }

  Status DeliverCached(const Extent& extent, File& file) {
    const uint64_t bytes = extent.end - extent.begin;
    if (bytes >= kMinMapBytes) {
      const Result<MappedRange> mapped = MappedRange::Map(file, extent.begin, bytes);
      if (mapped.ok()) return Deliver(extent, mapped->bytes());
      if (mapped.status().kind() != StatusKind::kNotSupported) return Named(mapped.status(), extent);
    }
    const std::span<std::byte> stored = cached_.Get(bytes);
    const Status status = file.ReadAt(extent.begin, stored);
    return status.ok() ? Deliver(extent, stored) : Named(status, extent);
  }

  void StartRead(Extent extent, std::shared_ptr<File> file) {
    Slot& slot = *free_.back();
    free_.pop_back();
    slot.extent = std::move(extent);
    slot.file = std::move(file);
    const bool whole_pages = slot.file->direct();
    const uint64_t begin = whole_pages ? PageDown(slot.extent.begin) : slot.extent.begin;
    const uint64_t end = whole_pages ? PageUp(slot.extent.end) : slot.extent.end;
    std::span<std::byte> into = InPlace(slot.extent, end - begin, whole_pages);
    if (into.empty()) into = slot.buffer.Get(end - begin);
    slot.stored = into.subspan(slot.extent.begin - begin, slot.extent.end - slot.extent.begin);
    if (!queue_) queue_ = loader_.files_.file_system().NewQueue({.depth = depth_});
    queue_->Read(*slot.file, begin, into, static_cast<uint64_t>(&slot - slots_.data()));
  }

  // The final place of an extent that is one chunk with one place, where the read may go there.
  std::span<std::byte> InPlace(const Extent& extent, uint64_t bytes, bool whole_pages) const {
    const ChunkRef& ref = extent.chunks.front();
    const std::span<const Need> needs = loader_.NeedsOfPiece(ref.need);
    const Piece piece = loader_.catalog_.pieces[needs.front().piece];
    const ChunkPlace place = loader_.PlaceOf(piece, ref.chunk);
    if (extent.chunks.size() > 1 || place.bytes != bytes || piece.codec != Codec::kNone) return {};
    std::byte* target = loader_.WholeTarget(piece, place, needs);
    if (whole_pages && reinterpret_cast<uintptr_t>(target) % kPageBytes != 0) return {};
    return {target, target == nullptr ? 0 : bytes};
  }

  Status Deliver(const Extent& extent, std::span<const std::byte> stored) {
    for (const ChunkRef& ref : extent.chunks)
      CAIRN_RETURN_IF_ERROR(loader_.DeliverChunk(ref, extent.begin, stored));
    return OkStatus();
  }

  Status Named(const Status& status, const Extent& extent) const {
    const Piece piece = loader_.catalog_.pieces[loader_.needs_[extent.chunks.front().need].piece];
    return {status.kind(), fmt::format("{} (bytes of tensor {})", status.message(),
                                       DisplayName(loader_.catalog_.tensors[piece.tensor]))};
  }

  StepLoader& loader_;
  const int depth_;
  std::vector<Slot> slots_;  // one more than reads in flight: the one that is being delivered
  std::vector<Slot*> free_;
  PageBuffer cached_;
  std::unique_ptr<IoQueue> queue_;  // last: it waits for reads into the slots
};

StepLoader::StepLoader(const Manifest& manifest, const StepCatalog& catalog, OpenFiles& files,
                       const LoadOptions& options)
    : manifest_(manifest),
      catalog_(catalog),
      files_(files),
      options_(options),
      decoder_(files.directory(), manifest_.run, manifest_.step, catalog) {
  for (const std::string& name : catalog.files) {
    const auto entry = std::ranges::find(manifest.files, name, &ManifestFile::name);
    file_bytes_.push_back(entry == manifest.files.end() ? 0 : entry->bytes);
  }
}

Status StepLoader::Load(std::span<const ReadRequest> requests) {
  requests_ = requests;
  CAIRN_RETURN_IF_ERROR(Plan());
  uint64_t bytes = 0;
  for (const ReadRequest& request : requests) bytes += request.out.size();
  const int threads =
      static_cast<int>(std::clamp<uint64_t>(bytes / kBytesPerThread, 1, std::max(1, options_.threads)));
  const auto work = [&] {
    const Status status = Worker(*this, std::max(1, options_.depth / threads)).Run();
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  };
  RunOnThreads(threads, work);
  return status_;
}

Status StepLoader::Plan() {
  needs_.clear();
  next_ = {0, 0};
  status_ = OkStatus();
  for (uint32_t i = 0; i < requests_.size(); ++i) CAIRN_RETURN_IF_ERROR(PlanRequest(i));
  std::sort(needs_.begin(), needs_.end());
  return OkStatus();
}

Status StepLoader::PlanRequest(uint32_t index) {
  const auto& [tensor, box, out] = requests_[index];
  if (tensor >= catalog_.tensors.size())
    return InvalidArgument("{}: there is no tensor number {}", files_.directory(), tensor);
  const TensorEntry& entry = catalog_.tensors[tensor];
  if (!Contains(Box::Whole(entry.spec.shape), box) || out.size() != box.Volume() * SizeOf(entry.dtype))
    return InvalidArgument("tensor {} of shape {}: cannot read box {} into {} bytes", DisplayName(entry),
                           ToString(entry.spec.shape), ToString(box), out.size());
  const auto [first, last] = catalog_.PiecesOfTensor(tensor);
  uint64_t found = 0;
  for (size_t i = first; i < last; ++i) {
    const Piece piece = catalog_.pieces[i];
    const uint64_t volume = CommonVolume(piece, box);
    if (volume > 0) needs_.push_back({piece.file, piece.file_offset, i, index});
    found += volume;
  }
  if (found == box.Volume()) return OkStatus();
  return Corrupt("{}: tensor {} box {}: pieces hold {} of {} elements; run cairn verify --structure",
                 files_.directory(), DisplayName(entry), ToString(box), found, box.Volume());
}

std::span<const StepLoader::Need> StepLoader::NeedsOfPiece(size_t first) const {
  size_t last = first;
  while (last < needs_.size() && needs_[last].piece == needs_[first].piece) ++last;
  return std::span(needs_).subspan(first, last - first);
}

ChunkPlace StepLoader::PlaceOf(const Piece& piece, uint64_t chunk) const {
  return PlaceOfChunk(piece, chunk, SizeOf(catalog_.tensors[piece.tensor].dtype));
}

// The next chunk that some request needs a part of. Call with the lock held.
std::optional<StepLoader::ChunkRef> StepLoader::PeekChunk() {
  while (next_.need < needs_.size()) {
    const std::span<const Need> needs = NeedsOfPiece(next_.need);
    const Piece piece = catalog_.pieces[needs.front().piece];
    for (; next_.chunk < piece.chunks.size(); ++next_.chunk) {
      const ChunkPlace place = PlaceOf(piece, next_.chunk);
      if (std::ranges::any_of(
              needs, [&](const Need& need) { return Meets(piece, place, requests_[need.request].box); }))
        return next_;
    }
    next_ = {next_.need + needs.size(), 0};
  }
  return std::nullopt;
}

std::optional<StepLoader::Extent> StepLoader::NextExtent() {
  const std::lock_guard lock(mutex_);
  Extent extent;
  while (status_.ok()) {
    const std::optional<ChunkRef> ref = PeekChunk();
    if (!ref) break;
    const Piece piece = catalog_.pieces[needs_[ref->need].piece];
    const ChunkPlace place = PlaceOf(piece, ref->chunk);
    const uint64_t end = place.offset + place.stored_bytes;
    const bool joins = piece.file == extent.file && place.offset >= extent.end &&
                       place.offset - extent.end <= kMaxGapBytes && end - extent.begin <= kExtentBytes;
    if (extent.chunks.empty()) {
      extent.file = piece.file;
      extent.begin = place.offset;
    } else if (!joins) {
      break;
    }
    extent.end = end;
    extent.chunks.push_back(*ref);
    ++next_.chunk;
  }
  return extent.chunks.empty() ? std::nullopt : std::optional(std::move(extent));
}

std::byte* StepLoader::WholeTarget(const Piece& piece, const ChunkPlace& place,
                                   std::span<const Need> needs) const {
  const uint64_t element_bytes = SizeOf(catalog_.tensors[piece.tensor].dtype);
  const std::vector<Segment> segments = Decompose(piece.box, place.elements);
  for (const Need& need : needs) {
    const ReadRequest& request = requests_[need.request];
    if (!Contains(request.box, segments.front().box)) continue;
    const uint64_t begin = FlatIndex(request.box, segments.front().box.offset);
    const bool whole = std::ranges::all_of(segments, [&](const Segment& segment) {
      return Contains(request.box, segment.box) && IsOneRun(request.box, segment.box) &&
             FlatIndex(request.box, segment.box.offset) == begin + segment.begin;
    });
    if (whole) return request.out.data() + begin * element_bytes;
  }
  return nullptr;
}

Status StepLoader::DeliverChunk(const ChunkRef& ref, uint64_t extent_begin,
                                std::span<const std::byte> extent_bytes) {
  const std::span<const Need> needs = NeedsOfPiece(ref.need);
  const Piece piece = catalog_.pieces[needs.front().piece];
  const ChunkPlace place = PlaceOf(piece, ref.chunk);
  const uint64_t element_bytes = SizeOf(catalog_.tensors[piece.tensor].dtype);
  const auto stored = extent_bytes.subspan(place.offset - extent_begin, place.stored_bytes);
  bytes_read_ += stored.size();
  const Status status = decoder_.Decode(piece, ref.chunk, stored, [&](uint64_t offset, auto bytes) {
    const uint64_t first = place.elements.begin + offset / element_bytes;
    const FlatRange elements{first, first + bytes.size() / element_bytes};
    for (const Need& need : needs) Scatter(piece, elements, bytes, element_bytes, requests_[need.request]);
  });
  StreamFence();
  return status;
}

}  // namespace cairn
