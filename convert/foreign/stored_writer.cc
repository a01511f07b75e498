// A block is cut with the parts of its tensor, each of those into runs of an array, and these into stretches
// of storages. Where tensors take turns in the columns of an array, their blocks are first joined to whole
// rows. An array that has begun has a stream, which holds what continues at one place: a write buffer
// and a CRC. It ends with the array's last element, because a tensor of experts may be thousands of arrays.
// When the run ends, its CRC is added for its place in the storage, so runs may come in any order. A
// container that is complete gets its frame: constants and the bytes around the storages, which hold the
// CRCs. Frames without CRCs wait for Finish(), because they may hold the fingerprint of the source. Then come
// texts and copies; files and directories are made durable.

#include "convert/foreign/stored_writer.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/canonical_path.h"

namespace cairn {
namespace {

constexpr uint64_t kCopyBytes = 1 << 20;
// Pages of all files that wait to become whole: as a rule those at the ends of arrays. Transposed elements
// come in many short stretches, which visit the same pages again and again.
constexpr size_t kWaitingPages = 2 << 10;
constexpr size_t kWaitingTransposedPages = 16 << 10;

}  // namespace

Result<std::unique_ptr<StoredWriter>> StoredWriter::Create(FileSystem& fs, WriteRing& ring,
                                                           const std::string& directory,
                                                           const StoredTarget& target, Direct direct) {
  std::unique_ptr<StoredWriter> writer(new StoredWriter(fs, directory, target));
  CAIRN_RETURN_IF_ERROR(writer->Open(ring, direct));
  return writer;
}

Status StoredWriter::Open(WriteRing& ring, Direct direct) {
  containers_.resize(target_.files.size());
  constants_.resize(target_.containers.size());
  for (uint32_t i = 0; i < target_.containers.size(); ++i) {
    containers_[target_.containers[i].file].push_back(i);
    std::vector<Crc32Sum>& crcs = crcs_.emplace_back();
    const StorageLayout& layout = *target_.containers[i].layout;
    for (size_t s = 0; layout.wants_crcs() && s < layout.storage_count(); ++s)
      crcs.emplace_back(layout.storage_bytes(s));
  }
  for (uint32_t i = 0; i < target_.constants.size(); ++i) {
    const TargetConstant& constant = target_.constants[i];
    constants_[target_.storages[constant.storage].container].push_back(i);
    const auto bytes = std::as_bytes(std::span(constant.bytes));
    if (Crc32Sum* crc = CrcOf(constant.storage)) crc->Add(bytes.size(), Crc32Sum::Extend(0, bytes));
  }
  left_.resize(target_.containers.size());
  framed_.resize(target_.containers.size());
  for (const StoredArray& array : target_.arrays)
    for (const StoredExtent& extent : array.extents)
      left_[target_.storages[extent.file].container] += extent.range.size() * SizeOf(array.dtype);
  const bool transposes = std::ranges::any_of(target_.parts, &ArrayPart::reorders);
  const bool scatters = direct != Direct::kOn && std::ranges::any_of(target_.parts, [this](const auto& part) {
                          return ScattersColumns(part);
                        });
  if (scatters) direct = Direct::kOff;
  waiting_.emplace(scatters ? 0 : transposes ? kWaitingTransposedPages : kWaitingPages);
  // Never directory_ itself: a signal may have removed it and its mark.
  for (const TargetFile& file : target_.files) AddDirectories(file.name, directories_);
  for (const std::string& below : directories_)
    CAIRN_RETURN_IF_ERROR(fs_.MakeDir(JoinPath(directory_, below)));
  for (size_t i = 0; i < target_.files.size(); ++i) {
    const TargetFile& file = target_.files[i];
    const std::string path = JoinPath(directory_, file.name);
    files_.emplace_back();
    if (containers_[i].empty()) continue;
    CAIRN_ASSIGN_OR_RETURN(files_.back(), PagedFile::Create(fs_, ring, *waiting_, path, file.bytes, direct));
  }
  return OkStatus();
}

Status StoredWriter::Write(const Block& block) {
  Status status;
  for (const auto& [part, common] : parts_.Meet(block.tensor, block.box)) {
    const Box array = Box::Whole(target_.arrays[part.array].shape);
    const auto write = [&, index = part.array](uint64_t to, std::span<const std::byte> bytes) {
      if (status.ok()) status = WriteRun(index, to, bytes);
    };
    if (!target_.by_turns.contains(part.array)) {
      transposer_.MapRuns(part, common, block.box, block.bytes, array, write);
    } else if (const Box all = AllTurns(part, common); auto joined = Join(part, common, all, block)) {
      transposer_.MapRuns({all, all}, all, all, *joined, array, write);
      spare_ = std::move(*joined);
    }
  }
  return status;
}

// Some columns of transposed matrices that are too large to wait for the others: short runs that lie far
// apart. The page cache joins them.
bool StoredWriter::ScattersColumns(const ArrayPart& part) const {
  const StoredArray& array = target_.arrays[part.array];
  const int last = array.shape.rank() - 1;
  return part.reorders() && last >= 0 && part.in_array.extent[last] < array.shape[last] &&
         !target_.by_turns.contains(part.array) && array.bytes() > kWaitingTransposedPages * kPageBytes / 2;
}

// The box of the array in which `common` is one of the turns.
Box StoredWriter::AllTurns(const ArrayPart& part, const Box& common) const {
  Box all = part.ToArray(common);
  const int last = all.rank() - 1;
  all.offset[last] = 0;
  all.extent[last] = target_.arrays[part.array].shape[last];
  return all;
}

// Puts one turn among the others. Returns all of them with the last one.
std::optional<std::vector<std::byte>> StoredWriter::Join(const ArrayPart& part, const Box& common,
                                                         const Box& all, const Block& block) {
  const StoredArray& array = target_.arrays[part.array];
  const auto joined = joined_.try_emplace({part.array, FlatIndex(Box::Whole(array.shape), all.offset)}).first;
  auto& [bytes, left] = joined->second;
  if (left == 0) {
    bytes = std::move(spare_);
    bytes.resize(all.Volume() * SizeOf(array.dtype));
    left = all.extent[all.rank() - 1];
  }
  BoxTransposer::Put(part, common, block.box, block.bytes, all, bytes);
  if (--left > 0) return std::nullopt;
  auto whole = std::move(bytes);
  joined_.erase(joined);
  return whole;
}

// Writes elements of an array, from `element` on, to their storages. Elements outside every extent are
// dropped.
Status StoredWriter::WriteRun(uint32_t index, uint64_t element, std::span<const std::byte> bytes) {
  const StoredArray& array = target_.arrays[index];
  const uint64_t size = SizeOf(array.dtype);
  const bool last = element + bytes.size() / size == array.shape.Volume();
  if (!streams_[index]) {
    if (idle_.empty()) idle_.push_back(std::make_unique<Stream>());
    streams_[index] = std::move(idle_.back());
    idle_.pop_back();
    active_.push_back(index);
  }
  auto extent =
      std::ranges::upper_bound(array.extents, element, {}, [](const StoredExtent& e) { return e.range.end; });
  while (!bytes.empty() && extent != array.extents.end()) {
    if (element < extent->range.begin) {
      const uint64_t gap = std::min<uint64_t>(extent->range.begin - element, bytes.size() / size);
      element += gap;
      bytes = bytes.subspan(gap * size);
      continue;
    }
    const uint64_t count = std::min<uint64_t>(extent->range.end - element, bytes.size() / size);
    const uint64_t at = extent->file_offset + (element - extent->range.begin) * size;
    CAIRN_RETURN_IF_ERROR(Put(*streams_[index], extent->file, at, bytes.first(count * size)));
    element += count;
    bytes = bytes.subspan(count * size);
    ++extent;
  }
  return last ? EndArray(index) : OkStatus();
}

// `offset`: in the storage.
Status StoredWriter::Put(Stream& stream, uint32_t storage, uint64_t offset,
                         std::span<const std::byte> bytes) {
  const uint64_t place = StorageOffset(storage) + offset;
  if (!stream.open || stream.storage != storage || stream.cursor.next != place) {
    CAIRN_RETURN_IF_ERROR(End(stream));
    stream.open = true;
    stream.storage = storage;
    stream.crc = 0;
    stream.begin = stream.cursor.next = place;
  }
  if (CrcOf(storage)) stream.crc = Crc32Sum::Extend(stream.crc, bytes);
  return files_[ContainerOf(storage).file]->Append(stream.cursor, bytes);
}

Status StoredWriter::End(Stream& stream) {
  if (!stream.open) return OkStatus();
  stream.open = false;
  if (Crc32Sum* crc = CrcOf(stream.storage))
    crc->Add(stream.cursor.next - StorageOffset(stream.storage), stream.crc);
  CAIRN_RETURN_IF_ERROR(files_[ContainerOf(stream.storage).file]->Flush(stream.cursor));
  const uint32_t container = target_.storages[stream.storage].container;
  left_[container] -= stream.cursor.next - stream.begin;
  return left_[container] == 0 && !crcs_[container].empty() ? WriteFrame(container) : OkStatus();
}

// Returns its buffer. It may begin again: runs of a transposed array come in any order.
Status StoredWriter::EndArray(uint32_t array) {
  CAIRN_RETURN_IF_ERROR(End(*streams_[array]));
  idle_.push_back(std::move(streams_[array]));
  std::erase(active_, array);
  return OkStatus();
}

Status StoredWriter::EndTensors() {
  while (!active_.empty()) CAIRN_RETURN_IF_ERROR(EndArray(active_.back()));
  return OkStatus();
}

std::vector<PlacedBytes> StoredWriter::Frame(uint32_t container) const {
  const auto& [file, offset, layout] = target_.containers[container];
  StorageSums sums{.source = source_, .quantization_error = quantization_error_};
  for (const Crc32Sum& crc : crcs_[container]) sums.crcs.push_back(crc.Finish());
  std::vector<PlacedBytes> frame = layout->Around(sums);
  for (PlacedBytes& placed : frame) placed.offset += offset;
  for (const uint32_t number : constants_[container]) {
    const TargetConstant& constant = target_.constants[number];
    frame.push_back({StorageOffset(constant.storage), constant.bytes});
  }
  std::ranges::sort(frame, {}, &PlacedBytes::offset);
  return frame;
}

Status StoredWriter::WriteFrame(uint32_t container) {
  framed_[container] = true;
  PagedFile& file = *files_[target_.containers[container].file];
  for (const PlacedBytes& placed : Frame(container))
    CAIRN_RETURN_IF_ERROR(file.Write(placed.offset, std::as_bytes(std::span(placed.bytes))));
  return OkStatus();
}

// One without containers.
Status StoredWriter::WriteFile(const TargetFile& file) {
  const std::string path = JoinPath(directory_, file.name);
  if (file.copy.fs == nullptr) return WriteSmallFile(fs_, path, file.text);
  CAIRN_ASSIGN_OR_RETURN(const auto from, file.copy.fs->OpenForRead(file.copy.path));
  CAIRN_ASSIGN_OR_RETURN(const auto to, fs_.Create(path));
  std::vector<std::byte> window(std::min(file.bytes, kCopyBytes));
  for (uint64_t at = 0; at < file.bytes; at += window.size()) {
    const auto bytes = std::span(window).first(std::min<uint64_t>(window.size(), file.bytes - at));
    CAIRN_RETURN_IF_ERROR(from->ReadAt(at, bytes));
    CAIRN_RETURN_IF_ERROR(to->WriteAt(at, bytes));
  }
  CAIRN_RETURN_IF_ERROR(to->Sync());
  return to->Close();
}

Status StoredWriter::Finish(const Digest& source, double quantization_error) {
  source_ = source;
  quantization_error_ = quantization_error;
  for (uint32_t i = 0; i < files_.size(); ++i) {
    if (files_[i]) {
      for (const uint32_t container : containers_[i])
        if (!framed_[container]) CAIRN_RETURN_IF_ERROR(WriteFrame(container));
      CAIRN_RETURN_IF_ERROR(files_[i]->Finish());
      files_[i].reset();
    } else {
      CAIRN_RETURN_IF_ERROR(WriteFile(target_.files[i]));
    }
  }
  idle_.clear();
  for (const std::string& below : directories_)
    CAIRN_RETURN_IF_ERROR(fs_.SyncDir(JoinPath(directory_, below)));
  return fs_.SyncDir(directory_);
}

}  // namespace cairn
