// Plan() makes the program of copies (ckpt/model/copy_program.h), in the order of the files. The workers take
// extents from the front of this list, under one lock: needed chunks of one file, with small gaps at most.
// Each reads its extents through an ExtentReader. A chunk is decoded once, for all requests that want it, and
// copied slice by slice before its digest is known; that is why a failed load leaves `out` unspecified.

#include "ckpt/step/step_loader.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "ckpt/base/threads.h"
#include "ckpt/io/extent_reader.h"
#include "ckpt/io/stream_copy.h"

namespace cairn {
namespace {

constexpr uint64_t kBytesPerThread = 16 << 20;  // less work than this is not worth another thread
constexpr size_t kStreamRunBytes = 1 << 10;     // shorter runs are copied through the cache
constexpr uint64_t kAloneBytes = 256 << 10;     // of a cached chunk: a system call costs less than a copy

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
        reader_(loader.files_,
                {.depth = depth, .direct = loader.options_.direct, .map = !loader.options_.in_place}) {}

  Status Run() {
    StartReads();
    while (reader_.waiting() > 0) {
      ExtentReader::Finished done = reader_.Wait();
      const Extent extent = std::move(extents_.extract(done.tag).mapped());
      if (!done.status.ok()) return Named(done.status, extent);
      StartReads();
      for (const ChunkRef& ref : extent.chunks)
        CAIRN_RETURN_IF_ERROR(loader_.DeliverChunk(ref, extent.begin, done.bytes));
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
                     .place = FinalPlace(*extent),
                     .tag = started_});
      extents_.emplace(started_++, std::move(*extent));
    }
  }

  // For an extent that is one plain chunk with one place.
  std::span<std::byte> FinalPlace(const Extent& extent) const {
    if (!loader_.options_.in_place || extent.chunks.size() > 1) return {};
    const ChunkRef& ref = extent.chunks.front();
    const std::span<const Copy> copies = loader_.CopiesOfPiece(ref.copy);
    const Piece piece = loader_.catalog_.pieces[copies.front().from];
    if (piece.codec != Codec::kNone) return {};
    const ChunkPlace place = loader_.PlaceOf(piece, ref.chunk);
    std::byte* target = loader_.WholeTarget(piece, place, copies);
    return {target, target == nullptr ? 0 : place.bytes};
  }

  Status Named(const Status& status, const Extent& extent) const {
    const Piece piece = loader_.catalog_.pieces[loader_.program_.copies[extent.chunks.front().copy].from];
    return {status.kind(), fmt::format("{} (bytes of tensor {})", status.message(),
                                       DisplayName(loader_.catalog_.tensors[piece.tensor]))};
  }

  StepLoader& loader_;
  std::map<uint64_t, Extent> extents_;  // that are being read, by tag
  uint64_t started_ = 0;
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
    const Piece piece = catalog_.pieces[program_.copies[ref->copy].from];
    const ChunkPlace place = PlaceOf(piece, ref->chunk);
    const uint64_t end = place.offset + place.stored_bytes;
    const bool alone =
        options_.cached && std::max(extent.end - extent.begin, place.stored_bytes) >= kAloneBytes;
    const bool joins =
        !alone && piece.file == extent.file && JoinsExtent(extent.begin, extent.end, place.offset, end);
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
  const Piece piece = catalog_.pieces[copies.front().from];
  const ChunkPlace place = PlaceOf(piece, ref.chunk);
  const uint64_t element_bytes = SizeOf(catalog_.tensors[piece.tensor].dtype);
  const auto stored = extent_bytes.subspan(place.offset - extent_begin, place.stored_bytes);
  bytes_read_ += stored.size();
  const Status status = decoder_.Decode(piece, ref.chunk, stored, [&](uint64_t offset, auto bytes) {
    const uint64_t first = place.elements.begin + offset / element_bytes;
    const FlatRange elements{first, first + bytes.size() / element_bytes};
    for (const Copy& copy : copies) Scatter(piece, elements, bytes, element_bytes, requests_[copy.to]);
  });
  StreamFence();
  return status;
}

}  // namespace cairn
