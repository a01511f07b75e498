// The layout is a function of entries and metadata alone, so that space for the header can be reserved
// before all metadata are known; the header is written last and must have kept its length. Each write is
// also summed by its place in its tensor. Prove() reads the file once, in order, compares header and sums,
// and computes the SHA-256 beside it.

#include "convert/formats/hugging_face/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "ckpt/base/background_sha256.h"
#include "ckpt/io/file_scan.h"
#include "convert/formats/hugging_face/safetensors_header.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

// 64 MiB: what is transposed on its way comes in many short stretches, page after page again and again.
constexpr size_t kMaxWaitingPages = 16 << 10;

TensorEntry AsTensor(const SafetensorsEntry& entry) {
  return {{.name = entry.name, .shape = entry.shape}, Role::kWeight, entry.dtype};
}

}  // namespace

Result<SafetensorsLayout> LayOutSafetensors(const std::vector<SafetensorsEntry>& entries,
                                            const SafetensorsMetadata& metadata) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const size_t type_a = SafetensorsTypeOrder(entries[a].dtype),
                 type_b = SafetensorsTypeOrder(entries[b].dtype);
    return type_a != type_b ? type_a > type_b : entries[a].name < entries[b].name;
  });
  ordered_json header;
  header[kSafetensorsMetadataKey] = {{"format", "pt"}};
  for (const auto& [key, value] : metadata) header[kSafetensorsMetadataKey][key] = value;
  SafetensorsLayout layout;
  layout.offsets.resize(entries.size());
  uint64_t at = 0;
  for (size_t index : order) {
    const SafetensorsEntry& entry = entries[index];
    if (header.contains(entry.name))
      return InvalidArgument("tensor {} would be in one file twice", entry.name);
    layout.offsets[index] = at;
    header[entry.name] = {{"dtype", SafetensorsTypeName(entry.dtype)},
                          {"shape", std::vector<uint64_t>(entry.shape.begin(), entry.shape.end())},
                          {"data_offsets", {at, at + entry.bytes()}}};
    at += entry.bytes();
  }
  std::string json = header.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes)
    return InvalidArgument(
        "{} tensors are too many for one safetensors file; choose a smaller --max-shard-size",
        entries.size());
  const uint64_t length = json.size();
  layout.header.resize(sizeof(length));
  std::memcpy(layout.header.data(), &length, sizeof(length));
  layout.header += json;
  for (uint64_t& offset : layout.offsets) offset += layout.header.size();
  layout.file_bytes = layout.header.size() + at;
  return layout;
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(FileSystem& fs, WriteRing& ring,
                                                                     const std::string& path,
                                                                     std::vector<SafetensorsEntry> entries,
                                                                     const SafetensorsMetadata& metadata) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  CAIRN_ASSIGN_OR_RETURN(writer->layout_, LayOutSafetensors(entries, metadata));
  writer->entries_ = std::move(entries);
  for (const SafetensorsEntry& entry : writer->entries_) writer->sums_.emplace_back(AsTensor(entry));
  CAIRN_ASSIGN_OR_RETURN(writer->file_, PagedFile::Create(fs, ring, path, writer->layout_.file_bytes,
                                                          Direct::kAuto, kMaxWaitingPages));
  return writer;
}

Status SafetensorsWriter::Write(size_t index, uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > entries_[index].bytes() || bytes.size() > entries_[index].bytes() - offset)
    return InvalidArgument("{}: more bytes than tensor {} has", file_->path(), entries_[index].name);
  written_bytes_ += bytes.size();
  sums_[index].Add(offset / SizeOf(entries_[index].dtype), bytes);
  const uint64_t at = layout_.offsets[index] + offset;
  if (cursor_.next != at) {
    CAIRN_RETURN_IF_ERROR(file_->Flush(cursor_));
    cursor_.next = at;
  }
  return file_->Append(cursor_, bytes);
}

Status SafetensorsWriter::Finish(const SafetensorsMetadata& metadata) {
  CAIRN_ASSIGN_OR_RETURN(const SafetensorsLayout final_layout, LayOutSafetensors(entries_, metadata));
  if (final_layout.header.size() != layout_.header.size())
    return InvalidArgument("{}: the header has {} bytes, {} were reserved", file_->path(),
                           final_layout.header.size(), layout_.header.size());
  if (layout_.header.size() + written_bytes_ != layout_.file_bytes)
    return InvalidArgument("{}: {} of {} bytes were written", file_->path(),
                           layout_.header.size() + written_bytes_, layout_.file_bytes);
  layout_ = final_layout;
  CAIRN_RETURN_IF_ERROR(Pause());
  CAIRN_RETURN_IF_ERROR(file_->Write(0, std::as_bytes(std::span(layout_.header))));
  return file_->Finish();
}

Result<std::string> SafetensorsWriter::Prove(FileSystem& fs,
                                             const std::function<void(uint64_t)>& progress) const {
  const std::string& path = file_->path();
  CAIRN_ASSIGN_OR_RETURN(const auto scan,
                         FileScan::Open(fs, path, layout_.file_bytes, Direct::kAuto, /*may_map=*/false));
  BackgroundSha256 sha;
  const auto read = [&](uint64_t most) -> Result<std::span<const std::byte>> {
    CAIRN_ASSIGN_OR_RETURN(const auto bytes, scan->Next(most));
    sha.Update(bytes);
    return bytes;
  };
  const auto header = std::as_bytes(std::span(layout_.header));
  while (scan->offset() < header.size()) {
    const uint64_t at = scan->offset();
    CAIRN_ASSIGN_OR_RETURN(const auto bytes, read(header.size() - at));
    if (!std::ranges::equal(bytes, header.subspan(at, bytes.size())))
      return Corrupt("{}: the header read back is not what was written", path);
  }
  std::vector<size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(layout_.offsets[i], entries_[i].bytes()); });
  for (const size_t index : order) {
    const SafetensorsEntry& entry = entries_[index];
    TensorFingerprint found(AsTensor(entry));
    for (uint64_t at = 0; at < entry.bytes();) {
      CAIRN_ASSIGN_OR_RETURN(const auto bytes, read(entry.bytes() - at));
      found.Add(at / SizeOf(entry.dtype), bytes);
      at += bytes.size();
      progress(bytes.size());
    }
    if (!(found == sums_[index]))
      return Corrupt("{}: tensor {} read back is not what was written; check the disk and try again", path,
                     entry.name);
  }
  return sha.FinishHex();
}

}  // namespace cairn
