// Each thread takes the next file. The extents of all arrays are sorted by file and offset. A window of a
// file meets some of them; what it holds of an extent is a range of the array's row-major order, which is cut
// into boxes, and those with the array's parts. The inverse of a part gives the box of the tensor; a
// transposed one is turned in memory first. An element that lies across the end of a window waits in `tail_`
// for its other half.

#include "convert/foreign/stored_scan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "ckpt/base/worker_pool.h"
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

using Extents = std::vector<PlacedExtent>;

// What all threads look up.
struct ScanIndex {
  explicit ScanIndex(const StoredCatalog& of) : catalog(of), parts(of.parts, &ArrayPart::array) {
    for (uint32_t i = 0; i < of.arrays.size(); ++i) {
      const uint64_t size = SizeOf(of.arrays[i].dtype);
      const auto [first, last] = parts.Of(i);
      if (first == last) continue;
      for (const StoredExtent& e : of.arrays[i].extents)
        if (e.range.size() > 0)
          extents.push_back({e.file, e.file_offset, e.file_offset + e.range.size() * size, i, e.range.begin});
    }
    std::ranges::sort(extents, {}, [](const PlacedExtent& e) { return std::pair(e.file, e.begin); });
  }

  const StoredCatalog& catalog;
  const PartIndex parts;
  Extents extents;  // by file and offset
};

// One file.
class Scanner {
 public:
  using See = std::function<void(uint32_t tensor, uint64_t begin, std::span<const std::byte> bytes)>;

  Scanner(const ScanIndex& index, uint32_t file, const See& see)
      : catalog_(index.catalog),
        parts_(index.parts),
        extents_(std::ranges::equal_range(index.extents, file, {}, &PlacedExtent::file)),
        first_(extents_.begin()),
        see_(see) {}

  // The next bytes of the file.
  void Add(std::span<const std::byte> bytes) {
    VisitWindow(at_, bytes);
    at_ += bytes.size();
  }

 private:
  // `bytes` of the file from `at` on. Skips extents that end before.
  void VisitWindow(uint64_t at, std::span<const std::byte> bytes) {
    const uint64_t end = at + bytes.size();
    while (first_ != extents_.end() && first_->end <= at) ++first_;
    for (auto extent = first_; extent != extents_.end() && extent->begin < end; ++extent)
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
      for (const auto& [part, common] : parts_.Meet(extent.array, segment.box))
        transposer_.MapRuns(part.Inverse(), common, segment.box, here,
                            Box::Whole(catalog_.tensors[part.tensor].spec.shape),
                            [&, tensor = part.tensor](uint64_t to, std::span<const std::byte> run) {
                              see_(tensor, to, run);
                            });
    }
  }

  const StoredCatalog& catalog_;
  const PartIndex& parts_;
  const std::ranges::subrange<Extents::const_iterator> extents_;  // of the file
  Extents::const_iterator first_;                                 // that may meet the next window
  const See& see_;
  uint64_t at_ = 0;
  std::array<std::byte, kMaxElementBytes> tail_{};
  BoxTransposer transposer_;
};

}  // namespace

Status ScanStored(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                  const StoredScan& scan) {
  const ScanIndex index(catalog);
  std::mutex mutex;
  const std::vector<TensorFingerprint> none(catalog.tensors.begin(), catalog.tensors.end());  // a sum each
  const Scanner::See see = [&](uint32_t tensor, uint64_t begin, std::span<const std::byte> bytes) {
    TensorFingerprint part = none[tensor];
    part.Add(begin, bytes);
    const std::lock_guard lock(mutex);
    scan.sums.of(tensor).AddSum(part.sum());
  };
  const auto scan_file = [&](uint32_t file) -> Status {
    const std::string path = JoinPath(directory, catalog.files[file]);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
    CAIRN_ASSIGN_OR_RETURN(const auto reader,
                           FileScan::Open(fs, path, info.bytes, Direct::kAuto, /*may_map=*/false));
    Scanner scanner(index, file, see);
    while (reader->offset() < info.bytes) {
      CAIRN_ASSIGN_OR_RETURN(const auto bytes, reader->Next(kScanWindowBytes));
      if (scan.raw) scan.raw(file, bytes);
      scanner.Add(bytes);
    }
    return OkStatus();
  };
  WorkerPool pool(std::min(scan.threads, static_cast<int>(catalog.files.size())));
  for (uint32_t file = 0; file < catalog.files.size(); ++file)
    CAIRN_RETURN_IF_ERROR(pool.Push([&scan_file, file](size_t) { return scan_file(file); }));
  return pool.Finish();
}

}  // namespace cairn
