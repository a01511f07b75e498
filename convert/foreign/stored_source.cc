// Make() checks everything once: extents lie in their files without gaps, parts fit their arrays, and the
// parts cover each tensor exactly once. ReadBox() can then rely on it. It cuts the box with the tensor's
// parts into runs (a stretch of a file and its place in the box) and sorts the runs by file and offset. If
// the box was announced, they were read ahead; else near ones are read together through one window. A run as
// large as the window goes straight to its place; a run of a transposed part is read through the window, and
// its elements are scattered.

#include "convert/foreign/stored_source.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr uint64_t kLargestGap = 8 << 10;  // unused bytes that are cheaper to read than to skip
constexpr uint64_t kLargestStep = 64;      // bytes from one element to the next of a run
constexpr uint64_t kMinWindowBytes = 64 << 10;
constexpr uint64_t kMaxWindowBytes = 8 << 20;

}  // namespace

Result<std::unique_ptr<StoredSource>> StoredSource::Make(FileSystem& fs, std::string directory,
                                                         Manifest manifest, StoredCatalog catalog) {
  std::ranges::sort(catalog.parts, [](const ArrayPart& a, const ArrayPart& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    return std::ranges::lexicographical_compare(a.box.offset, b.box.offset);
  });
  std::unique_ptr<StoredSource> source(
      new StoredSource(fs, std::move(directory), std::move(manifest), std::move(catalog)));
  CAIRN_RETURN_IF_ERROR(source->CheckArrays());
  CAIRN_RETURN_IF_ERROR(source->CheckParts());
  CAIRN_RETURN_IF_ERROR(source->CheckCovered());
  return source;
}

Status StoredSource::CheckArrays() {
  for (const std::string& file : catalog_.files) {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, files_.file_system().Stat(JoinPath(directory(), file)));
    file_bytes_.push_back(info.bytes);
  }
  for (const StoredArray& array : catalog_.arrays) {
    const auto bytes = CheckedBytes(array.shape, SizeOf(array.dtype));
    if (!bytes) return Corrupt("{}: {}: its size overflows", directory(), array.name);
    uint64_t at = 0;
    for (const StoredExtent& extent : array.extents) {
      if (extent.range.begin != at || extent.range.end < at || extent.file >= file_bytes_.size())
        return Corrupt("{}: element {} of {} is in no file, or in several", directory(), at, array.name);
      const uint64_t end = file_bytes_[extent.file];
      if (extent.range.size() > *bytes || extent.file_offset > end ||
          extent.range.size() * SizeOf(array.dtype) > end - extent.file_offset)
        return Corrupt("{}: {} at byte {} reaches beyond the end of the file ({} bytes); it was truncated",
                       JoinPath(directory(), catalog_.files[extent.file]), array.name, extent.file_offset,
                       end);
      at = extent.range.end;
    }
    if (at != *bytes / SizeOf(array.dtype))
      return Corrupt("{}: {} has {} elements, but its files hold {}", directory(), array.name,
                     *bytes / SizeOf(array.dtype), at);
  }
  return OkStatus();
}

Status StoredSource::CheckParts() const {
  for (const ArrayPart& part : catalog_.parts) {
    if (part.tensor >= catalog_.tensors.size() || part.array >= catalog_.arrays.size())
      return Corrupt("{}: a part of tensor {}, which does not exist", directory(), part.tensor);
    const TensorEntry& tensor = catalog_.tensors[part.tensor];
    const StoredArray& array = catalog_.arrays[part.array];
    if (array.dtype != tensor.dtype)
      return Corrupt("{}: {} is {}, but other parts of tensor {} are {}", directory(), array.name,
                     Name(array.dtype), DisplayName(tensor), Name(tensor.dtype));
    if (!part.Fits(tensor.spec.shape, array.shape))
      return Corrupt("{}: {} of shape {} does not fit tensor {} of shape {}", directory(), array.name,
                     ToString(array.shape), DisplayName(tensor), ToString(tensor.spec.shape));
  }
  return OkStatus();
}

Status StoredSource::CheckCovered() const {
  Catalog boxes;
  static_cast<TensorTable&>(boxes) = catalog_;
  for (const ArrayPart& part : catalog_.parts) {
    const StoredArray& array = catalog_.arrays[part.array];
    const uint64_t volume = part.box.Volume();
    boxes.pieces.push_back({.tensor = part.tensor,
                            .file = array.extents.empty() ? 0 : array.extents[0].file,
                            .box = part.box,
                            .range = {0, volume},
                            .stored_bytes = volume * SizeOf(array.dtype)});
  }
  return CheckCoverage(boxes).WithContext(directory());
}

PartRegions::PartRegions(const std::vector<ArrayPart>& parts, const CheckpointSource& source)
    : PartRegions(parts, [&source](uint32_t array, Region& region) {
        const Regions& stored = source.regions();
        const auto [first, last] = stored.OfTensor(array);
        if (first == last) return;
        region.file = stored[first].file;
        region.offset = stored[first].offset;
      }) {}

Region PartRegions::operator[](size_t index) const {
  Region region = Region::Whole(parts_[index].tensor, 0, parts_[index].box);
  place_of_(parts_[index].array, region);
  return region;
}

void StoredSource::SetPlace(uint32_t array, Region& region) const {
  const std::vector<StoredExtent>& extents = catalog_.arrays[array].extents;
  if (extents.empty()) return;
  region.file = extents[0].file;
  region.offset = extents[0].file_offset;
}

void StoredSource::SetCacheBytes(uint64_t bytes) {
  cache_bytes_ = bytes;
  window_bytes_ = std::clamp(bytes, kMinWindowBytes, kMaxWindowBytes);
  if (bytes == 0) std::vector<std::byte>().swap(window_);
}

void StoredSource::ReadAhead(BoxSequence next) {
  ahead_.reset();
  if (!next) return;
  ahead_ = std::make_unique<RunsAhead>(
      NumberedFiles{files_, catalog_.files, file_bytes_}, std::move(next),
      [this](const TensorBox& box) {
        return RunsAhead::BoxRuns{RunsOf(box), SizeOf(catalog_.tensors[box.tensor].dtype)};
      },
      [this](uint32_t file, uint64_t offset, std::span<const std::byte> bytes) { Saw(file, offset, bytes); },
      AheadBytes(cache_bytes_));
}

Status StoredSource::CheckRead() {
  if (!sums_) return OkStatus();
  ahead_.reset();
  std::vector<ExtentsAhead::Wanted> wanted;
  for (const auto& [file, where] : sums_->Gaps())
    for (uint64_t at = where.begin; at < where.end; at += kExtentBytes)
      wanted.push_back({{wanted.size(), 0}, file, at, std::min(where.end, at + kExtentBytes)});
  ExtentsAhead ahead(
      {files_, catalog_.files, file_bytes_},
      [next = wanted.begin(),
       end = wanted.end()]() mutable -> std::optional<std::vector<ExtentsAhead::Wanted>> {
        return next == end ? std::nullopt : std::optional(std::vector{*next++});
      },
      AheadBytes(cache_bytes_), AheadBytes(cache_bytes_) / 2);
  for (const ExtentsAhead::Wanted& gap : wanted) {
    CAIRN_ASSIGN_OR_RETURN(auto taken, ahead.Take(gap.id));
    Saw(gap.file, gap.begin, taken->bytes);
    ahead.Recycle(std::move(taken->memory));
  }
  return sums_->Check(catalog_.files).WithContext(directory());
}

Status StoredSource::ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) {
  const std::string context = "tensor " + DisplayName(catalog_.tensors[tensor]);
  if (ahead_) {
    const Result<std::optional<uint64_t>> read = ahead_->Read({tensor, box}, out);
    if (!read.ok()) return read.status().WithContext(context);
    bytes_read_ += read->value_or(0);
    if (*read) return OkStatus();
  }
  return ReadRuns(RunsOf({tensor, box}), SizeOf(catalog_.tensors[tensor].dtype), out).WithContext(context);
}

std::vector<FileRun> StoredSource::RunsOf(const TensorBox& wanted) const {
  const auto& [tensor, box] = wanted;
  std::vector<FileRun> runs;
  for (const auto& [part, common] : parts().Meet(tensor, box)) AddRuns(part, common, box, runs);
  std::ranges::sort(runs, {}, [](const FileRun& run) { return std::pair(run.file, run.offset); });
  return runs;
}

void StoredSource::AddRuns(const ArrayPart& part, const Box& common, const Box& box,
                           std::vector<FileRun>& runs) const {
  const StoredArray& array = catalog_.arrays[part.array];
  BoxLoops of = LoopsOf(part, common, box, Box::Whole(array.shape));
  Loop run;
  if (of.loops.back().in_array * SizeOf(array.dtype) <= kLargestStep) {
    run = of.loops.back();
    of.loops.pop_back();
  }
  ForEach(of.loops, of.in_array, of.in_tensor,
          [&](uint64_t element, uint64_t target) { AddRun(array, run, element, target, runs); });
}

void StoredSource::AddRun(const StoredArray& array, const Loop& run, uint64_t element, uint64_t target,
                          std::vector<FileRun>& runs) {
  const uint64_t size = SizeOf(array.dtype);
  auto extent =
      std::ranges::upper_bound(array.extents, element, {}, [](const StoredExtent& e) { return e.range.end; });
  for (uint64_t count = run.count; count > 0; ++extent) {
    if (extent->range.end <= element) continue;
    const uint64_t here = std::min(count, (extent->range.end - element - 1) / run.in_array + 1);
    const uint64_t offset = extent->file_offset + (element - extent->range.begin) * size;
    const uint64_t stretch = (here - 1) * run.in_array + 1;
    runs.push_back({extent->file, offset, stretch * size, target, run.in_tensor, run.in_array});
    element += here * run.in_array;
    target += here * run.in_tensor;
    count -= here;
  }
}

Status StoredSource::ReadRuns(std::span<const FileRun> runs, uint64_t element_bytes,
                              std::span<std::byte> out) {
  for (size_t first = 0; first < runs.size();) {
    const FileRun& run = runs[first];
    CAIRN_ASSIGN_OR_RETURN(const auto file, files_.Get(catalog_.files[run.file], Direct::kOff));
    if (run.stride == 1 && run.step == 1 && run.bytes >= window_bytes_) {
      const auto bytes = out.subspan(run.target * element_bytes, run.bytes);
      CAIRN_RETURN_IF_ERROR(file->ReadAt(run.offset, bytes));
      Saw(run.file, run.offset, bytes);
      bytes_read_ += run.bytes;
      ++first;
      continue;
    }
    // Another run may be larger than the window: the buffer grows to it.
    uint64_t end = run.offset + run.bytes;
    size_t last = first + 1;
    for (; last < runs.size() && runs[last].file == run.file && runs[last].offset <= end + kLargestGap;
         ++last) {
      const uint64_t longer = std::max(end, runs[last].offset + runs[last].bytes);
      if (longer - run.offset > window_bytes_) break;
      end = longer;
    }
    if (window_.size() < end - run.offset) window_.resize(end - run.offset);
    const auto bytes = std::span(window_).first(end - run.offset);
    CAIRN_RETURN_IF_ERROR(file->ReadAt(run.offset, bytes));
    Saw(run.file, run.offset, bytes);
    bytes_read_ += end - run.offset;
    for (; first < last; ++first)
      CopyRun(runs[first], window_.data() + (runs[first].offset - run.offset), element_bytes, out);
  }
  return OkStatus();
}

}  // namespace cairn
