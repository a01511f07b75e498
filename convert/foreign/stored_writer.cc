// A block is cut with the parts of its tensor, each of those into runs of an array, and these into stretches
// of storages. Every array has a stream, which holds what continues at one place: a write buffer and a CRC.
// Where it breaks off, the CRC of the run is added for its place in the storage, so that runs may come in
// any order. Finish() writes constants and what is around the storages, which holds the CRCs, and then makes
// files and directories durable.

#include "convert/foreign/stored_writer.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "ckpt/step/partial_dir.h"

namespace cairn {
Result<std::unique_ptr<StoredWriter>> StoredWriter::Create(FileSystem& fs, WriteRing& ring,
                                                           const std::string& directory,
                                                           const StoredTarget& target, Direct direct) {
  std::unique_ptr<StoredWriter> writer(new StoredWriter(fs, directory, target));
  CAIRN_RETURN_IF_ERROR(writer->Open(ring, direct));
  return writer;
}

Status StoredWriter::Open(WriteRing& ring, Direct direct) {
  parts_.resize(target_.tensors.size());
  for (uint32_t i = 0; i < target_.parts.size(); ++i) parts_[target_.parts[i].tensor].push_back(i);
  for (const TargetZip& zip : target_.zips) {
    std::vector<Crc32Sum>& crcs = crcs_.emplace_back();
    for (size_t s = 0; s < zip.layout.storage_count(); ++s) crcs.emplace_back(zip.layout.storage_bytes(s));
  }
  std::vector<bool> zipped(target_.files.size());
  for (const TargetZip& zip : target_.zips) zipped[zip.file] = true;
  std::set<std::string> made;
  for (size_t i = 0; i < target_.files.size(); ++i) {
    const TargetFile& file = target_.files[i];
    const std::string path = JoinPath(directory_, file.name);
    if (made.insert(ParentDir(path)).second) CAIRN_RETURN_IF_ERROR(MakeDirs(fs_, ParentDir(path)));
    files_.emplace_back();
    if (!zipped[i]) continue;
    CAIRN_ASSIGN_OR_RETURN(files_.back(), PagedFile::Create(fs_, ring, path, file.bytes, direct));
  }
  return OkStatus();
}

Status StoredWriter::Write(const Block& block) {
  for (const uint32_t index : parts_[block.tensor]) {
    const ArrayPart& part = target_.parts[index];
    if (part.box.rank() == 0)
      CAIRN_RETURN_IF_ERROR(WriteRun(part.array, 0, block.bytes));
    else if (const auto common = Intersect(part.box, block.box))
      CAIRN_RETURN_IF_ERROR(WritePart(part, *common, block));
  }
  return OkStatus();
}

Status StoredWriter::WritePart(const ArrayPart& part, const Box& common, const Block& block) {
  const TargetArray& array = target_.arrays[part.array];
  const uint64_t size = SizeOf(array.dtype);
  std::span<const std::byte> bytes = block.bytes;
  if (part.transpose) bytes = Transpose(common, block, size);
  const Box place = part.ToArray(common), from = part.transpose ? place : part.ToArray(block.box);
  Status status;
  ForEachRun(place, from, Box::Whole(array.shape), [&](uint64_t at, uint64_t to, uint64_t count) {
    if (status.ok()) status = WriteRun(part.array, to, bytes.subspan(at * size, count * size));
  });
  return status;
}

// `common` of the block, its columns as rows.
std::span<const std::byte> StoredWriter::Transpose(const Box& common, const Block& block, uint64_t size) {
  const uint64_t bytes = common.Volume() * size, rows = common.extent[0];
  if (transposed_.size() < bytes) transposed_.resize(bytes);
  ForEachRun(common, block.box, common, [&](uint64_t from, uint64_t to, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t row = (to + i) / common.extent[1], column = (to + i) % common.extent[1];
      std::memcpy(transposed_.data() + (column * rows + row) * size, block.bytes.data() + (from + i) * size,
                  size);
    }
  });
  return std::span(transposed_).first(bytes);
}

// Writes elements of an array, from `element` on, to their storages. Elements outside every extent are
// dropped.
Status StoredWriter::WriteRun(uint32_t index, uint64_t element, std::span<const std::byte> bytes) {
  const TargetArray& array = target_.arrays[index];
  const uint64_t size = SizeOf(array.dtype);
  if (!streams_[index]) {
    if (idle_.empty()) idle_.push_back(std::make_unique<Stream>());
    streams_[index] = std::move(idle_.back());
    idle_.pop_back();
    active_.push_back(index);
  }
  auto extent =
      std::ranges::upper_bound(array.extents, element, {}, [](const TargetExtent& e) { return e.range.end; });
  while (!bytes.empty() && extent != array.extents.end()) {
    if (element < extent->range.begin) {
      const uint64_t gap = std::min<uint64_t>(extent->range.begin - element, bytes.size() / size);
      element += gap;
      bytes = bytes.subspan(gap * size);
      continue;
    }
    const uint64_t count = std::min<uint64_t>(extent->range.end - element, bytes.size() / size);
    const uint64_t at = (extent->element + element - extent->range.begin) * size;
    CAIRN_RETURN_IF_ERROR(Put(*streams_[index], *extent, at, bytes.first(count * size)));
    element += count;
    bytes = bytes.subspan(count * size);
    ++extent;
  }
  return OkStatus();
}

// `offset`: in the storage.
Status StoredWriter::Put(Stream& stream, const TargetExtent& extent, uint64_t offset,
                         std::span<const std::byte> bytes) {
  const uint64_t place = StorageOffset(extent.zip, extent.storage) + offset;
  const bool same = stream.open && stream.zip == extent.zip && stream.storage == extent.storage &&
                    stream.cursor.next == place;
  if (!same) {
    CAIRN_RETURN_IF_ERROR(End(stream));
    stream.open = true;
    stream.zip = extent.zip;
    stream.storage = extent.storage;
    stream.crc = 0;
    stream.cursor.next = place;
  }
  stream.crc = Crc32Sum::Extend(stream.crc, bytes);
  return files_[target_.zips[extent.zip].file]->Append(stream.cursor, bytes);
}

Status StoredWriter::End(Stream& stream) {
  if (!stream.open) return OkStatus();
  stream.open = false;
  const uint64_t end = stream.cursor.next - StorageOffset(stream.zip, stream.storage);
  crcs_[stream.zip][stream.storage].Add(end, stream.crc);
  return files_[target_.zips[stream.zip].file]->Flush(stream.cursor);
}

Status StoredWriter::EndTensor() {
  for (const uint32_t array : active_) {
    CAIRN_RETURN_IF_ERROR(End(*streams_[array]));
    idle_.push_back(std::move(streams_[array]));
  }
  active_.clear();
  return OkStatus();
}

Status StoredWriter::WriteConstants() {
  for (const TargetConstant& constant : target_.constants) {
    const TargetExtent place{
        .range = {0, constant.bytes.size()}, .zip = constant.zip, .storage = constant.storage};
    Stream stream;
    CAIRN_RETURN_IF_ERROR(Put(stream, place, 0, std::as_bytes(std::span(constant.bytes))));
    CAIRN_RETURN_IF_ERROR(End(stream));
  }
  return OkStatus();
}

Status StoredWriter::Finish() {
  CAIRN_RETURN_IF_ERROR(WriteConstants());
  for (size_t i = 0; i < target_.zips.size(); ++i) {
    const TargetZip& zip = target_.zips[i];
    std::vector<uint32_t> crcs;
    for (const Crc32Sum& crc : crcs_[i]) crcs.push_back(crc.Finish());
    for (const PlacedBytes& placed : zip.layout.Around(crcs))
      CAIRN_RETURN_IF_ERROR(
          files_[zip.file]->Write(zip.offset + placed.offset, std::as_bytes(std::span(placed.bytes))));
  }
  std::set<std::string> directories = {directory_};
  for (size_t i = 0; i < files_.size(); ++i) {
    const TargetFile& file = target_.files[i];
    const std::string path = JoinPath(directory_, file.name);
    CAIRN_RETURN_IF_ERROR(files_[i] ? files_[i]->Finish() : WriteSmallFile(fs_, path, file.text));
    directories.insert(ParentDir(path));
  }
  for (const std::string& directory : directories) CAIRN_RETURN_IF_ERROR(fs_.SyncDir(directory));
  return OkStatus();
}

}  // namespace cairn
