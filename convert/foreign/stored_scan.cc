// The extents of all arrays are sorted by file and offset. A window of a file meets some of them; what it
// holds of an extent is a range of the array's row-major order, which is cut into boxes, and those with the
// array's parts. The inverse of a part gives the box of the tensor; a transposed one is turned in memory
// first. An element that lies across the end of a window waits in `tail_` for its other half.

#include "convert/foreign/stored_scan.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ckpt/io/file_scan.h"
#include "convert/foreign/transpose.h"

namespace cairn {
namespace {

constexpr uint64_t kScanWindowBytes = 4 << 20;
constexpr uint64_t kMaxElementBytes = 8;

struct PlacedExtent {
  uint32_t file = 0;
  uint64_t begin = 0, end = 0;  // bytes of the file
  uint32_t array = 0;
  uint64_t element = 0;  // of the array, the first one
};

class Scanner {
 public:
  Scanner(const StoredCatalog& catalog, const StoredScan& scan)
      : catalog_(catalog), scan_(scan), parts_(catalog.arrays.size()) {
    for (uint32_t i = 0; i < catalog.parts.size(); ++i) parts_[catalog.parts[i].array].push_back(i);
    for (uint32_t i = 0; i < catalog.arrays.size(); ++i) {
      const uint64_t size = SizeOf(catalog.arrays[i].dtype);
      for (const StoredExtent& e : catalog.arrays[i].extents)
        if (e.range.size() > 0 && !parts_[i].empty())
          extents_.push_back(
              {e.file, e.file_offset, e.file_offset + e.range.size() * size, i, e.range.begin});
    }
    std::ranges::sort(extents_, {}, [](const PlacedExtent& e) { return std::pair(e.file, e.begin); });
  }

  Status Run(FileSystem& fs, const std::string& directory) {
    for (uint32_t file = 0; file < catalog_.files.size(); ++file) {
      const std::string path = JoinPath(directory, catalog_.files[file]);
      CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
      CAIRN_ASSIGN_OR_RETURN(const auto reader,
                             FileScan::Open(fs, path, info.bytes, Direct::kAuto, /*may_map=*/false));
      const auto [first, last] = std::ranges::equal_range(extents_, file, {}, &PlacedExtent::file);
      first_ = first;
      for (uint64_t at = 0; at < info.bytes;) {
        CAIRN_ASSIGN_OR_RETURN(const auto bytes, reader->Next(kScanWindowBytes));
        if (scan_.raw) scan_.raw(file, bytes);
        VisitWindow({first_, last}, at, bytes);
        at += bytes.size();
      }
    }
    return OkStatus();
  }

 private:
  using Extents = std::vector<PlacedExtent>::const_iterator;

  // `bytes` of the file from `at` on. Extents that end before are passed over from then on.
  void VisitWindow(std::ranges::subrange<Extents> extents, uint64_t at, std::span<const std::byte> bytes) {
    const uint64_t end = at + bytes.size();
    while (first_ != extents.end() && first_->end <= at) ++first_;
    for (auto extent = first_; extent != extents.end() && extent->begin < end; ++extent)
      if (extent->end > at) VisitExtent(*extent, at, bytes);
    const uint64_t kept = std::min<uint64_t>(kMaxElementBytes, bytes.size());
    std::memmove(tail_.data(), tail_.data() + kept, kMaxElementBytes - kept);
    std::memcpy(tail_.data() + kMaxElementBytes - kept, bytes.data() + bytes.size() - kept, kept);
  }

  void VisitExtent(const PlacedExtent& extent, uint64_t at, std::span<const std::byte> bytes) {
    const uint64_t size = SizeOf(catalog_.arrays[extent.array].dtype);
    uint64_t begin = std::max(at, extent.begin);
    const uint64_t end = std::min(at + bytes.size(), extent.end);
    if (const uint64_t in_element = (begin - extent.begin) % size; in_element > 0) {  // begun before
      const uint64_t rest = size - in_element;
      if (rest > end - begin) return;  // a window of a few bytes: the element continues in the next one
      std::array<std::byte, kMaxElementBytes> element;
      std::memcpy(element.data(), tail_.data() + kMaxElementBytes - in_element, in_element);
      std::memcpy(element.data() + in_element, bytes.data() + (begin - at), rest);
      VisitElements(extent, (begin - in_element - extent.begin) / size, std::span(element).first(size));
      begin += rest;
    }
    const uint64_t count = (end - begin) / size;
    if (count > 0)
      VisitElements(extent, (begin - extent.begin) / size, bytes.subspan(begin - at, count * size));
  }

  // `bytes` are elements of the extent from number `first` of it on.
  void VisitElements(const PlacedExtent& extent, uint64_t first, std::span<const std::byte> bytes) {
    const StoredArray& array = catalog_.arrays[extent.array];
    const uint64_t size = SizeOf(array.dtype), begin = extent.element + first;
    for (const Segment& segment : Decompose(Box::Whole(array.shape), {begin, begin + bytes.size() / size})) {
      const auto here = bytes.subspan(segment.begin * size, segment.box.Volume() * size);
      for (const uint32_t index : parts_[extent.array])
        if (const auto common = Intersect(catalog_.parts[index].in_array, segment.box))
          VisitPart(catalog_.parts[index], *common, segment.box, here, size);
    }
  }

  // `common` of the array's box `have`, whose elements are `bytes`.
  void VisitPart(const ArrayPart& part, const Box& common, const Box& have, std::span<const std::byte> bytes,
                 uint64_t size) {
    const BoxMap from_array = part.Inverse();
    const Box box = from_array.ToArray(common);
    Box from = from_array.ToArray(have);
    if (part.transpose) {
      bytes = transposer_.Transposed(common, have, bytes, size);
      from = box;
    }
    const Box whole = Box::Whole(catalog_.tensors[part.tensor].spec.shape);
    ForEachRun(box, from, whole, [&](uint64_t source, uint64_t to, uint64_t count) {
      scan_.see(part.tensor, to, bytes.subspan(source * size, count * size));
    });
  }

  const StoredCatalog& catalog_;
  const StoredScan& scan_;
  std::vector<std::vector<uint32_t>> parts_;  // of each array
  std::vector<PlacedExtent> extents_;
  Extents first_;  // that may meet the next window
  std::array<std::byte, kMaxElementBytes> tail_{};
  BoxTransposer transposer_;
};

}  // namespace

Status ScanStored(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                  const StoredScan& scan) {
  return Scanner(catalog, scan).Run(fs, directory);
}

}  // namespace cairn
