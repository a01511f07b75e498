// First the table after the frames. It is found from the end of the file, by zstd's seek table, and is not
// trusted: its sizes must add up to the file and to the stored frames. Then PackedFile, which reads at any
// offset: it finds the frame, decodes all of it, and keeps the last few, so that small sequential reads
// decode each frame once. A reader of a frame that is being decoded waits for it; different frames are
// decoded at the same time.

#include "tools/archive/tar/packed_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ckpt/base/byte_codec.h"

namespace cairn {
namespace {

constexpr std::string_view kTableMagic = "CAIRNPK1";
constexpr uint32_t kZstdMagic = 0xFD2FB528;
constexpr uint32_t kTableFrameMagic = 0x184D2A5C;
constexpr uint32_t kSeekFrameMagic = 0x184D2A5E;
constexpr uint32_t kSeekFooterMagic = 0x8F92EAB1;
constexpr uint64_t kSkippableHeaderBytes = 8;
constexpr uint64_t kSeekEntryBytes = 8;
constexpr uint64_t kSeekFooterBytes = 9;
constexpr uint64_t kFrameRecordBytes = 10;  // of the shortest record in the table
constexpr uint64_t kLowRecordBytes = 16;    // more with low halves
constexpr uint64_t kExceptionBytes = 6;
constexpr uint64_t kMaxTableBytes = 1 << 30;
constexpr size_t kMaxIdleDecoders = 4;  // decoders that are kept for the next reader
constexpr size_t kMaxRecent = 6;        // frames that are kept, or in flight
constexpr uint64_t kZstdBlockBytes = 128 << 10;
// A frame that does not shrink is stored as raw blocks.
constexpr uint64_t kRawFrameOverhead = 9 + 3 * (kMaxCodecChunkBytes / kZstdBlockBytes + 1);

std::string Skippable(uint32_t magic, std::string content) {
  ByteWriter out;
  out.Put(magic);
  out.Put(static_cast<uint32_t>(content.size()));
  out.PutRaw(content);
  return std::move(out).Take();
}

std::string EncodeTable(const PackedTable& table) {
  ByteWriter out;
  out.PutRaw(kTableMagic);
  out.Put(table.bytes);
  out.Put(static_cast<uint32_t>(table.names.size()));
  for (const std::string& name : table.names) out.PutText(name);
  out.Put(static_cast<uint32_t>(table.frames.size()));
  for (const PackedFrame& frame : table.frames) {
    out.Put(frame.bytes);
    out.Put(frame.stored_bytes);
    out.Put(frame.element_bytes);
    out.Put(static_cast<uint8_t>(frame.low_halves));
    if (!frame.low_halves) continue;
    out.Put(frame.weight_name);
    out.Put(frame.weight_offset);
    out.Put(frame.exceptions);
    for (uint32_t i = 0; i < frame.exceptions; ++i) {
      out.Put(table.exceptions[frame.first_exception + i].index);
      out.Put(table.exceptions[frame.first_exception + i].high);
    }
  }
  return std::move(out).Take();
}

// One frame's record; nullopt if it is invalid.
std::optional<PackedFrame> DecodeFrame(ByteReader& in, PackedTable& table) {
  PackedFrame frame{.bytes = in.Get<uint32_t>(), .stored_bytes = in.Get<uint32_t>()};
  frame.element_bytes = in.Get<uint8_t>();
  const auto kind = in.Get<uint8_t>();
  if (!in.ok() || kind > 1 || frame.bytes == 0 || frame.bytes > kMaxCodecChunkBytes ||
      frame.element_bytes < 1 || frame.element_bytes > kMaxElementBytes ||
      frame.stored_bytes > frame.bytes + kRawFrameOverhead)
    return std::nullopt;
  frame.low_halves = kind == 1;
  if (!frame.low_halves) return frame;
  frame.weight_name = in.Get<uint32_t>();
  frame.weight_offset = in.Get<uint64_t>();
  frame.exceptions = in.Get<uint32_t>();
  frame.first_exception = static_cast<uint32_t>(table.exceptions.size());
  if (!in.ok() || frame.bytes % 4 != 0 || frame.weight_name >= table.names.size() ||
      frame.exceptions > in.left() / kExceptionBytes)
    return std::nullopt;
  for (uint32_t i = 0; i < frame.exceptions; ++i) {
    MasterException exception{.index = in.Get<uint32_t>()};
    exception.high = in.Get<uint16_t>();
    if (exception.index >= frame.bytes / 4) return std::nullopt;
    table.exceptions.push_back(exception);
  }
  return frame;
}

Result<PackedTable> DecodeTable(std::string_view bytes, uint64_t frames_bytes) {
  ByteReader in(bytes);
  PackedTable table;
  if (in.GetRaw(kTableMagic.size()) != kTableMagic) return Corrupt("its table of frames has no magic");
  table.bytes = in.Get<uint64_t>();
  const auto names = in.Get<uint32_t>();
  for (uint32_t i = 0; i < names && in.ok(); ++i) table.names.emplace_back(in.GetText());
  const auto frames = in.Get<uint32_t>();
  if (!in.ok() || frames > in.left() / kFrameRecordBytes) return Corrupt("its table of frames is truncated");
  uint64_t sum = 0, stored = 0;
  for (uint32_t i = 0; i < frames; ++i) {
    const auto frame = DecodeFrame(in, table);
    if (!frame) return Corrupt("frame {} of its table is invalid", i);
    sum += frame->bytes;
    stored += frame->stored_bytes;
    table.frames.push_back(*frame);
  }
  if (!in.ok() || in.left() != 0 || sum != table.bytes || stored != frames_bytes)
    return Corrupt("its table of frames contradicts itself");
  return table;
}

}  // namespace

void AppendRawFrame(std::span<const std::byte> bytes, std::vector<std::byte>& out) {
  const auto put = [&out](const auto& value, size_t count) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), raw, raw + count);
  };
  put(kZstdMagic, 4);
  out.push_back(std::byte{0xa0});  // single segment, content size in 4 bytes
  put(static_cast<uint32_t>(bytes.size()), 4);
  do {
    const auto block = bytes.first(std::min<size_t>(bytes.size(), kZstdBlockBytes));
    const uint32_t last = block.size() == bytes.size();
    put(static_cast<uint32_t>(block.size() << 3 | last), 3);
    out.insert(out.end(), block.begin(), block.end());
    bytes = bytes.subspan(block.size());
  } while (!bytes.empty());
}

std::string EncodePackedTail(const PackedTable& table) {
  std::string tail = Skippable(kTableFrameMagic, EncodeTable(table));
  ByteWriter seek;
  for (const PackedFrame& frame : table.frames) {
    seek.Put(frame.stored_bytes);
    seek.Put(frame.low_halves ? frame.bytes / 2 : frame.bytes);
  }
  seek.Put(static_cast<uint32_t>(tail.size()));
  seek.Put(uint32_t{0});
  seek.Put(static_cast<uint32_t>(table.frames.size() + 1));
  seek.Put(uint8_t{0});  // no checksums
  seek.Put(kSeekFooterMagic);
  return tail + Skippable(kSeekFrameMagic, std::move(seek).Take());
}

uint64_t PackedTailBytesAtMost(uint64_t frames, uint64_t exceptions, uint64_t name_bytes) {
  return 4096 + name_bytes + frames * (kFrameRecordBytes + kLowRecordBytes + kSeekEntryBytes) +
         exceptions * kExceptionBytes;
}

Result<PackedTable> ReadPackedTable(const FileRange& range) {
  constexpr uint64_t kEndBytes = kSeekEntryBytes + kSeekFooterBytes;  // the last entry is the table's
  if (range.bytes < kEndBytes) return Corrupt("is too short to be a packed file");
  std::array<char, kEndBytes> end{};
  CAIRN_RETURN_IF_ERROR(
      range.file->ReadAt(range.offset + range.bytes - kEndBytes, std::as_writable_bytes(std::span(end))));
  ByteReader footer({end.data(), end.size()});
  const uint64_t table_frame_bytes = footer.Get<uint32_t>();
  (void)footer.Get<uint32_t>();
  const uint64_t seek_entries = footer.Get<uint32_t>();
  (void)footer.Get<uint8_t>();
  if (footer.Get<uint32_t>() != kSeekFooterMagic) return Corrupt("has no seek table at its end");
  const uint64_t seek_bytes = kSkippableHeaderBytes + seek_entries * kSeekEntryBytes + kSeekFooterBytes;
  if (seek_bytes > range.bytes || table_frame_bytes > range.bytes - seek_bytes ||
      table_frame_bytes < kSkippableHeaderBytes || table_frame_bytes > kMaxTableBytes)
    return Corrupt("has a seek table that contradicts its size");
  std::string table(table_frame_bytes, '\0');
  CAIRN_RETURN_IF_ERROR(range.file->ReadAt(range.offset + range.bytes - seek_bytes - table_frame_bytes,
                                           std::as_writable_bytes(std::span(table))));
  return DecodeTable(std::string_view(table).substr(kSkippableHeaderBytes),
                     range.bytes - seek_bytes - table_frame_bytes);
}

PackedFile::PackedFile(std::string path, FileRange range, PackedTable table, SiblingReader siblings)
    : path_(std::move(path)),
      range_(std::move(range)),
      table_(std::move(table)),
      siblings_(std::move(siblings)) {
  uint64_t begin = 0, offset = 0;
  for (const PackedFrame& frame : table_.frames) {
    begins_.push_back(begin);
    offsets_.push_back(offset);
    begin += frame.bytes;
    offset += frame.stored_bytes;
  }
}

Result<std::unique_ptr<PackedFile>> PackedFile::Open(std::string path, FileRange range,
                                                     SiblingReader siblings) {
  Result<PackedTable> table = ReadPackedTable(range);
  if (!table.ok()) return table.status().WithContext(path);
  return std::unique_ptr<PackedFile>(
      new PackedFile(std::move(path), std::move(range), std::move(table).value(), std::move(siblings)));
}

std::unique_ptr<PackedFile::Scratch> PackedFile::TakeScratch() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(idle_.back());
  idle_.pop_back();
  return scratch;
}

// Requires the mutex. The new one reuses the memory of one that nobody reads any more.
std::shared_ptr<PackedFile::Decoded> PackedFile::StartFrame(size_t frame) {
  auto decoded = std::make_shared<Decoded>();
  decoded->frame = frame;
  if (recent_.size() >= kMaxRecent) {
    if (recent_.front().use_count() == 1) decoded->bytes = std::move(recent_.front()->bytes);
    recent_.pop_front();
  }
  recent_.push_back(decoded);
  return decoded;
}

Result<std::shared_ptr<const PackedFile::Decoded>> PackedFile::FrameAt(size_t frame) {
  std::shared_ptr<Decoded> decoded;
  {
    std::unique_lock lock(mutex_);
    const auto found = std::ranges::find(recent_, frame, [](const auto& one) { return one->frame; });
    if (found != recent_.end()) {
      decoded = *found;
      recent_.erase(found);
      recent_.push_back(decoded);
      ready_.wait(lock, [&] { return decoded->ready; });
      CAIRN_RETURN_IF_ERROR(decoded->status);
      return std::shared_ptr<const Decoded>(std::move(decoded));
    }
    decoded = StartFrame(frame);
  }
  std::unique_ptr<Scratch> scratch = TakeScratch();
  const Status status = Decode(frame, *scratch, decoded->bytes);
  {
    const std::lock_guard lock(mutex_);
    decoded->status = status;
    decoded->ready = true;
    if (!status.ok()) std::erase(recent_, decoded);  // a later read may succeed
    if (idle_.size() < kMaxIdleDecoders) idle_.push_back(std::move(scratch));
  }
  ready_.notify_all();
  CAIRN_RETURN_IF_ERROR(status);
  return std::shared_ptr<const Decoded>(std::move(decoded));
}

Status PackedFile::ReadAt(uint64_t offset, std::span<std::byte> bytes) {
  if (offset > table_.bytes || bytes.size() > table_.bytes - offset)
    return Corrupt("{} ends at byte {}", path_, table_.bytes);
  while (!bytes.empty()) {
    const size_t frame = std::ranges::upper_bound(begins_, offset) - begins_.begin() - 1;
    const auto decoded = FrameAt(frame);
    if (!decoded.ok())
      return decoded.status().WithContext(fmt::format("{} at byte {}", path_, begins_[frame]));
    const uint64_t within = offset - begins_[frame];
    const uint64_t count = std::min<uint64_t>(bytes.size(), table_.frames[frame].bytes - within);
    std::memcpy(bytes.data(), (*decoded)->bytes.data() + within, count);
    bytes = bytes.subspan(count);
    offset += count;
  }
  return OkStatus();
}

Status PackedFile::Decode(size_t index, Scratch& scratch, std::vector<std::byte>& out) {
  const PackedFrame& frame = table_.frames[index];
  scratch.stored.resize(frame.stored_bytes);
  CAIRN_RETURN_IF_ERROR(range_.file->ReadAt(range_.offset + offsets_[index], scratch.stored));
  out.resize(frame.bytes);
  if (frame.low_halves) return JoinLow(frame, scratch, out);
  return scratch.decoder.Decode(scratch.stored, frame.element_bytes, out);
}

Status PackedFile::JoinLow(const PackedFrame& frame, Scratch& scratch, std::span<std::byte> out) {
  if (!siblings_) return Corrupt("its weights are halves of other weights themselves");
  scratch.low.resize(frame.bytes / 2);
  scratch.weights.resize(frame.bytes / 2);
  CAIRN_RETURN_IF_ERROR(scratch.decoder.Decode(scratch.stored, frame.element_bytes, scratch.low));
  CAIRN_RETURN_IF_ERROR(siblings_(table_.names[frame.weight_name], frame.weight_offset, scratch.weights));
  const auto exceptions = std::span(table_.exceptions).subspan(frame.first_exception, frame.exceptions);
  JoinMaster(scratch.weights, scratch.low, exceptions, out);
  return OkStatus();
}

}  // namespace cairn
