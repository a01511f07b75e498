// Plan() makes the program of copies (ckpt/model/copy_program.h), in the order of the files. The workers take
// extents from the front of this list, under one lock: needed chunks of one file, with small gaps at most.
// Each reads its extents through an ExtentReader. A chunk is decoded once, for all requests that want it, and
// copied slice by slice before its digest is known; that is why a failed load leaves `out` unspecified.

#include "ckpt/step/step_loader.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "ckpt/base/cores.h"
#include "ckpt/base/threads.h"
#include "ckpt/io/extent_reader.h"
#include "ckpt/io/stream_copy.h"

namespace cairn {
namespace {

constexpr uint64_t kBytesPerThread = 16 << 20;  // less work than this is not worth another thread
constexpr size_t kStreamRunBytes = 1 << 10;     // shorter runs are copied through the cache

// The requests as placed boxes.
class RequestRegions final : public Regions {
 public:
  explicit RequestRegions(std::span<const ReadRequest> requests) : requests_(requests) {}
  size_t size() const override { return requests_.size(); }
  Region operator[](size_t index) const override {
    return Region::Whole(requests_[index].tensor, 0, requests_[index].box);
  }
  std::pair<size_t, size_t> OfTensor(uint32_t) const override { return {0, 0}; }  // in any order

 private:
  const std::span<const ReadRequest> requests_;
};

bool Meets(const Piece& piece, const ChunkPlace& place, const Box& box) {
  bool meets = false;
  ForEachMeeting(piece.box, place.elements, box, [&](const Segment&, const Box&) { meets = true; });
  return meets;
}

// Visits the runs that `box` and `elements` of a piece share: visit(first element in `elements`, first
// element in `box`, count).
template <typename Visit>
void ForEachSharedRun(const Piece& piece, FlatRange elements, const Box& box, Visit visit) {
  ForEachMeeting(piece.box, elements, box, [&](const Segment& segment, const Box& common) {
    ForEachRun(common, segment.box, box, [&](uint64_t source, uint64_t target, uint64_t count) {
      visit(segment.begin + source, target, count);
    });
  });
}

// Copies the part that `request` wants of `elements` of a piece, whose values are `values`.
void Scatter(const Piece& piece, FlatRange elements, std::span<const std::byte> values,
             uint64_t element_bytes, const ReadRequest& request) {
  ForEachSharedRun(piece, elements, request.box, [&](uint64_t source, uint64_t target, uint64_t count) {
    const auto run = values.subspan(source * element_bytes, count * element_bytes);
    std::byte* to = request.out.data() + target * element_bytes;
    if (to == run.data()) return;  // it was read in place
    if (run.size() < kStreamRunBytes) {
      std::memcpy(to, run.data(), run.size());
    } else {
      StreamCopy(to, run);
    }
  });
}

}  // namespace

// One thread's share. Starts the next extent before it delivers a finished one: the disk never waits.
class StepLoader::Worker {
 public:
  Worker(StepLoader& loader, int depth)
      : loader_(loader),
        reader_(loader.files_, {.depth = depth,
                                .direct = loader.options_.direct,
                                .map = loader.options_.map,
                                .leave_cached = !loader.options_.map}) {}

  Status Run() {
    StartReads();
    while (reader_.waiting() > 0) {
      ExtentReader::Finished done = reader_.Wait();
      const Extent extent = std::move(extents_.extract(done.tag).mapped());
      CAIRN_RETURN_IF_ERROR(loader_.Named(done.status, extent.chunks.front()));
      StartReads();
      if (done.cached) CAIRN_RETURN_IF_ERROR(DeliverFrom(*done.cached, extent));
      for (size_t i = 0; !done.cached && i < extent.chunks.size(); ++i)
        CAIRN_RETURN_IF_ERROR(loader_.DeliverChunk(extent.chunks[i], extent.begin, done.bytes));
      reader_.Recycle(std::move(done.memory));
    }
    return OkStatus();
  }

 private:
  void StartReads() {
    while (!reader_.full()) {
      std::optional<Extent> extent = loader_.NextExtent();
      if (!extent) return;
      reader_.Start({.file = loader_.catalog_.files[extent->file],
                     .begin = extent->begin,
                     .end = extent->end,
                     .file_bytes = loader_.file_bytes_[extent->file],
                     .tag = started_});
      extents_.emplace(started_++, std::move(*extent));
    }
  }

  // Delivers an extent that is in the page cache: large chunks in slices, small ones several at a time.
  Status DeliverFrom(File& file, const Extent& extent) {
    const auto place_of = [&](const ChunkRef& ref) {
      return loader_.PlaceOf(loader_.PieceOf(ref), ref.chunk);
    };
    for (size_t first = 0, last = 0; first < extent.chunks.size(); first = last) {
      const ChunkPlace place = place_of(extent.chunks[first]);
      if (!place.encoded && place.bytes >= kSliceBytes) {
        CAIRN_RETURN_IF_ERROR(loader_.DeliverCached(extent.chunks[first], file, Memory(kSliceBytes)));
        last = first + 1;
        continue;
      }
      uint64_t end = place.offset + place.stored_bytes;
      for (last = first + 1; last < extent.chunks.size(); ++last) {
        const ChunkPlace next = place_of(extent.chunks[last]);
        if (next.offset + next.stored_bytes - place.offset > kSliceBytes) break;
        end = next.offset + next.stored_bytes;
      }
      const std::span<std::byte> memory = Memory(end - place.offset);
      CAIRN_RETURN_IF_ERROR(loader_.Named(file.ReadAt(place.offset, memory), extent.chunks[first]));
      for (; first < last; ++first)
        CAIRN_RETURN_IF_ERROR(loader_.DeliverChunk(extent.chunks[first], place.offset, memory));
    }
    return OkStatus();
  }

  std::span<std::byte> Memory(uint64_t bytes) {
    if (!memory_ || memory_->capacity < bytes) memory_ = reader_.NewBuffer(bytes);
    return {memory_->data(), bytes};
  }

  StepLoader& loader_;
  std::map<uint64_t, Extent> extents_;  // that are being read, by tag
  uint64_t started_ = 0;
  std::unique_ptr<PageBuffer> memory_;  // for what comes from the page cache
  ExtentReader reader_;
};

StepLoader::StepLoader(const Manifest& manifest, const StepCatalog& catalog, OpenFiles& files,
                       std::span<const uint64_t> file_bytes, const LoadOptions& options)
    : manifest_(manifest),
      catalog_(catalog),
      files_(files),
      options_(options),
      decoder_(files.directory(), manifest_.run, manifest_.step, catalog),
      file_bytes_(file_bytes) {}

Status StepLoader::Load(std::span<const ReadRequest> requests) {
  requests_ = requests;
  CAIRN_RETURN_IF_ERROR(Plan());
  uint64_t bytes = 0;
  for (const ReadRequest& request : requests) bytes += request.out.size();
  const int threads =
      static_cast<int>(std::clamp<uint64_t>(bytes / kBytesPerThread, 1, std::max(1, options_.threads)));
  std::atomic<int> started = 0;
  const auto work = [&] {
    const OnNode bound(options_.spread ? started++ : 0, options_.spread);
    const Status status = Worker(*this, std::max(1, options_.depth / threads)).Run();
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  };
  RunOnThreads(threads, work);
  return status_;
}

Status StepLoader::Plan() {
  next_ = {0, 0};
  status_ = OkStatus();
  for (const ReadRequest& request : requests_) CAIRN_RETURN_IF_ERROR(CheckRequest(request));
  const PieceRegions pieces(catalog_);
  Result<CopyProgram> program = PlanCopies(catalog_, pieces, RequestRegions(requests_));
  if (!program.ok()) return program.status().WithContext(files_.directory());
  program_ = std::move(program).value();
  program_.SortByPlace(pieces);
  return OkStatus();
}

Status StepLoader::CheckRequest(const ReadRequest& request) const {
  const auto& [tensor, box, out] = request;
  if (tensor >= catalog_.tensors.size())
    return InvalidArgument("{}: it has no tensor number {}", files_.directory(), tensor);
  const TensorEntry& entry = catalog_.tensors[tensor];
  if (Contains(Box::Whole(entry.spec.shape), box) && out.size() == box.Volume() * SizeOf(entry.dtype))
    return OkStatus();
  return InvalidArgument("tensor {} of shape {}: cannot read box {} into {} bytes", DisplayName(entry),
                         ToString(entry.spec.shape), ToString(box), out.size());
}

std::span<const Copy> StepLoader::CopiesOfPiece(size_t first) const {
  const std::vector<Copy>& copies = program_.copies;
  size_t last = first;
  while (last < copies.size() && copies[last].from == copies[first].from) ++last;
  return std::span(copies).subspan(first, last - first);
}

ChunkPlace StepLoader::PlaceOf(const Piece& piece, uint64_t chunk) const {
  return PlaceOfChunk(piece, chunk, SizeOf(catalog_.tensors[piece.tensor].dtype));
}

// The next chunk that some request needs a part of. Call with the lock held.
std::optional<StepLoader::ChunkRef> StepLoader::PeekChunk() {
  while (next_.copy < program_.copies.size()) {
    const std::span<const Copy> copies = CopiesOfPiece(next_.copy);
    const Piece piece = catalog_.pieces[copies.front().from];
    for (; next_.chunk < piece.chunks.size(); ++next_.chunk) {
      const ChunkPlace place = PlaceOf(piece, next_.chunk);
      if (std::ranges::any_of(copies,
                              [&](const Copy& copy) { return Meets(piece, place, requests_[copy.to].box); }))
        return next_;
    }
    next_ = {next_.copy + copies.size(), 0};
  }
  return std::nullopt;
}

std::optional<StepLoader::Extent> StepLoader::NextExtent() {
  const std::lock_guard lock(mutex_);
  Extent extent;
  while (status_.ok()) {
    const std::optional<ChunkRef> ref = PeekChunk();
    if (!ref) break;
    const Piece piece = PieceOf(*ref);
    const ChunkPlace place = PlaceOf(piece, ref->chunk);
    const uint64_t end = place.offset + place.stored_bytes;
    const bool joins = piece.file == extent.file && JoinsExtent(extent.begin, extent.end, place.offset, end);
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
                                   std::span<const Copy> copies) const {
  for (const Copy& copy : copies) {
    const ReadRequest& request = requests_[copy.to];
    uint64_t begin = 0, covered = 0;
    const auto visit = [&](uint64_t source, uint64_t target, uint64_t count) {
      if (source == 0) begin = target;
      if (source == covered && target == begin + covered) covered += count;
    };
    ForEachSharedRun(piece, place.elements, request.box, visit);
    if (covered == place.elements.size())
      return request.out.data() + begin * SizeOf(catalog_.tensors[piece.tensor].dtype);
  }
  return nullptr;
}

Status StepLoader::DeliverChunk(const ChunkRef& ref, uint64_t extent_begin,
                                std::span<const std::byte> extent_bytes) {
  const std::span<const Copy> copies = CopiesOfPiece(ref.copy);
  const Piece piece = PieceOf(ref);
  const ChunkPlace place = PlaceOf(piece, ref.chunk);
  const auto stored = extent_bytes.subspan(place.offset - extent_begin, place.stored_bytes);
  bytes_read_ += stored.size();
  const Status status = decoder_.Decode(piece, ref.chunk, stored, ScatterTo(piece, place, copies));
  StreamFence();
  return status;
}

ChunkDecoder::Sink StepLoader::ScatterTo(const Piece& piece, const ChunkPlace& place,
                                         std::span<const Copy> copies) const {
  return [this, &piece, begin = place.elements.begin, copies](uint64_t offset, auto bytes) {
    const uint64_t size = SizeOf(catalog_.tensors[piece.tensor].dtype), first = begin + offset / size;
    const FlatRange elements{first, first + bytes.size() / size};
    for (const Copy& copy : copies) Scatter(piece, elements, bytes, size, requests_[copy.to]);
  };
}

Status StepLoader::Named(const Status& status, const ChunkRef& ref) const {
  if (status.ok()) return status;
  return {status.kind(), fmt::format("{} (bytes of tensor {})", status.message(),
                                     DisplayName(catalog_.tensors[PieceOf(ref).tensor]))};
}

Status StepLoader::DeliverCached(const ChunkRef& ref, File& file, std::span<std::byte> memory) {
  const std::span<const Copy> copies = CopiesOfPiece(ref.copy);
  const Piece piece = PieceOf(ref);
  const ChunkPlace place = PlaceOf(piece, ref.chunk);
  std::byte* const target = WholeTarget(piece, place, copies);
  bytes_read_ += place.bytes;
  const Status status = decoder_.DecodePlain(
      piece, ref.chunk,
      [&](uint64_t offset, uint64_t bytes) -> Result<std::span<const std::byte>> {
        const std::span<std::byte> slice =
            target == nullptr ? memory.first(bytes) : std::span(target + offset, bytes);
        CAIRN_RETURN_IF_ERROR(Named(file.ReadAt(place.offset + offset, slice), ref));
        return std::span<const std::byte>(slice);
      },
      target == nullptr || copies.size() > 1 ? ScatterTo(piece, place, copies) : ChunkDecoder::Sink());
  StreamFence();
  return status;
}

}  // namespace cairn
