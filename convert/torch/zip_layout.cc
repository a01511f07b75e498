// Sizes are known before the data, CRCs are not. So local headers leave CRC and size to descriptors after the
// data, and the constructor can place every record. The directory has the same length whatever the CRCs are,
// which gives the file's size. Around() makes the bytes around the storages once the CRCs are known.

#include "convert/torch/zip_layout.h"

#include <algorithm>

#include "convert/torch/crc32_sum.h"

namespace cairn {
namespace {

constexpr uint64_t kSmallAlignment = 64;    // torch's own
constexpr uint64_t kLargeAlignment = 4096;  // of files with large storages, which then go past the page cache
constexpr uint64_t kLargeStorage = 256 << 10;
constexpr uint64_t kLimit32 = UINT32_MAX;
constexpr uint16_t kFlags = 0x0808;  // data descriptors, names in UTF-8
constexpr uint64_t kLocalHeaderBytes = 30;
constexpr uint64_t kPadHeaderBytes = 4;

std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(i < 8 ? value >> 8 * i : 0);
  return text;
}

uint64_t DescriptorBytes(bool zip64) { return zip64 ? 24 : 16; }
uint64_t LocalZip64Bytes(bool zip64) { return zip64 ? 20 : 0; }

uint32_t CrcOf(const std::string& data) { return Crc32(std::as_bytes(std::span(data))); }

}  // namespace

ZipLayout::ZipLayout(const std::string& archive, std::string pickle, const std::vector<uint64_t>& storages)
    : storage_count_(storages.size()) {
  if (std::ranges::any_of(storages, [](uint64_t bytes) { return bytes >= kLargeStorage; }))
    alignment_ = kLargeAlignment;
  const auto add = [&](const std::string& name, std::string data) {
    const uint64_t bytes = data.size();
    Add(archive + "/" + name, bytes, std::move(data));
  };
  add("data.pkl", std::move(pickle));
  add(".format_version", "1");
  add(".storage_alignment", std::to_string(alignment_));
  add("byteorder", "little");
  first_storage_ = records_.size();
  for (size_t i = 0; i < storages.size(); ++i) Add(archive + "/data/" + std::to_string(i), storages[i], "");
  add("version", "3\n");
  directory_offset_ = bytes_;
  bytes_ += Directory(std::vector<uint32_t>(storages.size())).size();
}

void ZipLayout::Add(std::string name, uint64_t bytes, std::string data) {
  Record record{std::move(name), std::move(data), bytes, bytes_, 0, false};
  record.zip64 = bytes >= kLimit32 || bytes_ >= kLimit32;
  const uint64_t least =
      bytes_ + kLocalHeaderBytes + record.name.size() + LocalZip64Bytes(record.zip64) + kPadHeaderBytes;
  record.data_offset = (least + alignment_ - 1) / alignment_ * alignment_;
  bytes_ = record.data_offset + bytes + DescriptorBytes(record.zip64);
  records_.push_back(std::move(record));
}

// Sizes and CRC follow in the descriptor. The gap up to the data is a field that no reader knows.
std::string ZipLayout::LocalHeader(const Record& record) const {
  const uint64_t extra = record.data_offset - record.header_offset - kLocalHeaderBytes - record.name.size();
  const uint64_t pad = extra - LocalZip64Bytes(record.zip64) - kPadHeaderBytes;
  std::string header = "PK\3\4" + Little(0, 2) + Little(kFlags, 2) + Little(0, 2 + 4 + 4 + 4 + 4) +
                       Little(record.name.size(), 2) + Little(extra, 2) + record.name;
  if (record.zip64) header += Little(1, 2) + Little(16, 2) + Little(0, 8) + Little(0, 8);
  return header + "FB" + Little(pad, 2) + std::string(pad, 'Z');
}

std::string ZipLayout::Directory(const std::vector<uint32_t>& crcs) const {
  std::string directory;
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const bool storage = i >= first_storage_ && i < first_storage_ + storage_count_;
    const uint32_t crc = storage ? crcs[i - first_storage_] : CrcOf(record.data);
    std::string extra;
    if (record.bytes >= kLimit32) extra += Little(record.bytes, 8) + Little(record.bytes, 8);
    if (record.header_offset >= kLimit32) extra += Little(record.header_offset, 8);
    if (!extra.empty()) extra = Little(1, 2) + Little(extra.size(), 2) + extra;
    const uint64_t size = std::min(record.bytes, kLimit32);
    directory += "PK\1\2" + Little(0, 2) + Little(record.zip64 ? 45 : 0, 2) + Little(kFlags, 2) +
                 Little(0, 2 + 4) + Little(crc, 4) + Little(size, 4) + Little(size, 4) +
                 Little(record.name.size(), 2) + Little(extra.size(), 2) + Little(0, 2 + 2 + 2 + 4) +
                 Little(std::min(record.header_offset, kLimit32), 4) + record.name + extra;
  }
  const uint64_t directory_bytes = directory.size(), count = records_.size();
  const uint64_t end = directory_offset_ + directory_bytes;
  directory += "PK\6\6" + Little(44, 8) + Little(798, 2) + Little(45, 2) + Little(0, 4 + 4) +
               Little(count, 8) + Little(count, 8) + Little(directory_bytes, 8) +
               Little(directory_offset_, 8);
  directory += "PK\6\7" + Little(0, 4) + Little(end, 8) + Little(1, 4);
  const uint64_t short_count = std::min<uint64_t>(count, UINT16_MAX);
  directory += "PK\5\6" + Little(0, 2 + 2) + Little(short_count, 2) + Little(short_count, 2) +
               Little(std::min(directory_bytes, kLimit32), 4) +
               Little(std::min(directory_offset_, kLimit32), 4) + Little(0, 2);
  return directory;
}

std::vector<PlacedBytes> ZipLayout::Around(const StorageSums& sums) const {
  std::vector<PlacedBytes> around;
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const bool storage = i >= first_storage_ && i < first_storage_ + storage_count_;
    const uint32_t crc = storage ? sums.crcs[i - first_storage_] : CrcOf(record.data);
    const int width = record.zip64 ? 8 : 4;
    around.push_back({record.header_offset, LocalHeader(record) + record.data});
    around.push_back(
        {record.data_offset + record.bytes,
         "PK\7\10" + Little(crc, 4) + Little(record.bytes, width) + Little(record.bytes, width)});
  }
  around.push_back({directory_offset_, Directory(sums.crcs)});
  return around;
}

}  // namespace cairn
