// Read() begins at the end: the end record before any comment, the zip64 record if there is one, the
// central directory in one read, and its entries. Then the records are sorted by their local headers. Each
// must begin after the end of the one before it and end before the directory, so that no byte belongs to
// two records and no offset leaves the container.

#include "convert/torch/zip_container.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "convert/torch/crc32_sum.h"

namespace cairn {
namespace {

constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kZip64LocatorBytes = 20;
constexpr uint64_t kZip64EndBytes = 56;
constexpr uint64_t kEntryBytes = 46;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kMaxCommentBytes = 65535;
constexpr uint64_t kMaxDirectoryBytes = 256 << 20;  // some 3 million records

template <typename Integer>
Integer Load(std::string_view bytes, size_t at) {
  Integer value;
  std::memcpy(&value, bytes.data() + at, sizeof(Integer));
  return value;
}

struct Directory {
  uint64_t offset = 0;  // from the container's start
  uint64_t bytes = 0;
  uint64_t count = 0;
};

// The end record is the last thing in the container, except for a comment.
Result<uint64_t> FindEnd(std::string_view tail) {
  for (size_t at = tail.size() - kEndBytes + 1; at-- > 0;)
    if (tail.substr(at, 4) == "PK\5\6" && Load<uint16_t>(tail, at + 20) == tail.size() - at - kEndBytes)
      return at;
  return Corrupt("its zip container has no end; the file was truncated");
}

Result<Directory> FindDirectory(File& file, Stretch where) {
  if (where.size() < kEndBytes) return Corrupt("{} bytes are not a zip container", where.size());
  const uint64_t tail_bytes = std::min(where.size(), kEndBytes + kMaxCommentBytes + kZip64LocatorBytes);
  // Archive comments are not supported: the end record must be last, behind the locator of a zip64 end.
  uint64_t read = std::min<uint64_t>(tail_bytes, 4096);
  CAIRN_ASSIGN_OR_RETURN(std::string tail, ReadBytes(file, where.end - read, read));
  Result<uint64_t> end = FindEnd(tail);
  if ((!end.ok() || *end < kZip64LocatorBytes) && read < tail_bytes) {
    read = tail_bytes;
    CAIRN_ASSIGN_OR_RETURN(tail, ReadBytes(file, where.end - read, read));
    end = FindEnd(tail);
  }
  if (!end.ok()) return end.status();
  Directory directory{Load<uint32_t>(tail, *end + 16), Load<uint32_t>(tail, *end + 12),
                      Load<uint16_t>(tail, *end + 10)};
  const bool overflows =
      directory.offset == UINT32_MAX || directory.bytes == UINT32_MAX || directory.count == UINT16_MAX;
  uint64_t directory_end = where.size() - read + *end;
  const bool has_zip64 =
      *end >= kZip64LocatorBytes && std::string_view(tail).substr(*end - 20, 4) == "PK\6\7";
  if (overflows && !has_zip64) return Corrupt("its zip container has no zip64 end; it is damaged");
  if (has_zip64) {
    const uint64_t at = Load<uint64_t>(tail, *end - 12);
    if (at > directory_end || directory_end - at < kZip64EndBytes + kZip64LocatorBytes)
      return Corrupt("the zip64 end at byte {} is outside of its container", at);
    CAIRN_ASSIGN_OR_RETURN(const std::string zip64, ReadBytes(file, where.begin + at, kZip64EndBytes));
    if (!zip64.starts_with("PK\6\6")) return Corrupt("the zip64 end at byte {} is missing", where.begin + at);
    directory = {Load<uint64_t>(zip64, 48), Load<uint64_t>(zip64, 40), Load<uint64_t>(zip64, 32)};
    directory_end = at;
  }
  if (directory.offset > directory_end || directory.bytes > directory_end - directory.offset)
    return Corrupt("the zip directory ({} bytes at {}) is outside of its container", directory.bytes,
                   directory.offset);
  if (directory.bytes > kMaxDirectoryBytes || directory.count > directory.bytes / kEntryBytes)
    return Corrupt("a zip directory of {} bytes does not hold {} records", directory.bytes, directory.count);
  return directory;
}

// Reads the values that overflow 32 bits from the extra field 1, in this order.
Status Widen(std::string_view extra, uint64_t& size, uint64_t& packed, uint64_t& offset) {
  while (extra.size() >= 4) {
    const auto id = Load<uint16_t>(extra, 0);
    const auto bytes = Load<uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) break;
    std::string_view field = extra.substr(4, bytes);
    extra.remove_prefix(4 + bytes);
    if (id != 1) continue;
    for (uint64_t* value : {&size, &packed, &offset}) {
      if (*value != UINT32_MAX) continue;
      if (field.size() < 8) return Corrupt("a zip64 field is too short");
      *value = Load<uint64_t>(field, 0);
      field.remove_prefix(8);
    }
  }
  return OkStatus();
}

struct Entry {
  ZipRecord record;
  uint64_t header = 0;  // from the container's start
};

Result<Entry> ParseEntry(std::string_view directory, size_t& at) {
  if (directory.size() - at < kEntryBytes || directory.substr(at, 4) != "PK\1\2")
    return Corrupt("the zip directory is damaged at its byte {}", at);
  const std::string_view entry = directory.substr(at);
  const uint64_t name_bytes = Load<uint16_t>(entry, 28), extra_bytes = Load<uint16_t>(entry, 30);
  const uint64_t all = kEntryBytes + name_bytes + extra_bytes + Load<uint16_t>(entry, 32);
  if (all > entry.size()) return Corrupt("the zip directory is damaged at its byte {}", at);
  at += all;
  Entry found;
  found.record.name = entry.substr(kEntryBytes, name_bytes);
  if (Load<uint16_t>(entry, 8) & 1) return NotSupported("record {} is encrypted", found.record.name);
  if (Load<uint16_t>(entry, 10) != 0)
    return NotSupported(
        "record {} is compressed, as in TorchScript and np.savez_compressed, and never by torch.save; save "
        "the module's state_dict(), or unpack the file and zip it with -0",
        found.record.name);
  found.record.crc = Load<uint32_t>(entry, 16);
  uint64_t packed = Load<uint32_t>(entry, 20);
  found.record.bytes = Load<uint32_t>(entry, 24);
  found.header = Load<uint32_t>(entry, 42);
  CAIRN_RETURN_IF_ERROR(
      Widen(entry.substr(kEntryBytes + name_bytes, extra_bytes), found.record.bytes, packed, found.header)
          .WithContext("record " + found.record.name));
  if (packed != found.record.bytes)
    return Corrupt("record {} has {} bytes, but {} compressed ones", found.record.name, found.record.bytes,
                   packed);
  return found;
}

// The archive's directory is that of the first record; names are keys here, and never paths.
Status Rename(std::vector<Entry>& entries) {
  if (entries.empty()) return OkStatus();
  const std::string archive = entries[0].record.name.substr(0, entries[0].record.name.find('/') + 1);
  for (Entry& entry : entries) {
    std::string& name = entry.record.name;
    const std::string slashes = "/" + name + "/";
    if (!name.starts_with(archive) || name.find('\0') != std::string::npos ||
        slashes.find("//") != std::string::npos || slashes.find("/../") != std::string::npos)
      return Corrupt("record {} has a name that torch never writes", name);
    name.erase(0, archive.size());
  }
  return OkStatus();
}

// Finds the records' data and checks that they lie one after another before the directory.
Status PlaceRecords(File& file, Stretch where, uint64_t directory_offset, std::vector<Entry>& entries) {
  std::ranges::sort(entries, {}, &Entry::header);
  uint64_t free = 0;
  for (Entry& entry : entries) {
    ZipRecord& record = entry.record;
    if (entry.header < free || entry.header > directory_offset ||
        directory_offset - entry.header < kLocalBytes)
      return Corrupt("record {} at byte {} overlaps another one or lies outside of its container",
                     record.name, where.begin + entry.header);
    CAIRN_ASSIGN_OR_RETURN(const std::string local, ReadBytes(file, where.begin + entry.header, kLocalBytes));
    const uint64_t data = entry.header + kLocalBytes + Load<uint16_t>(local, 26) + Load<uint16_t>(local, 28);
    if (!local.starts_with("PK\3\4") || data > directory_offset || record.bytes > directory_offset - data)
      return Corrupt("record {} of {} bytes at byte {} reaches out of its container", record.name,
                     record.bytes, where.begin + entry.header);
    record.file_offset = where.begin + data;
    free = data + record.bytes;
  }
  return OkStatus();
}

}  // namespace

Result<std::string> ReadBytes(File& file, uint64_t offset, uint64_t bytes) {
  std::string text(bytes, '\0');
  CAIRN_RETURN_IF_ERROR(file.ReadAt(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<ZipContainer> ZipContainer::Read(File& file, Stretch where) {
  CAIRN_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(file, where));
  CAIRN_ASSIGN_OR_RETURN(const std::string bytes,
                         ReadBytes(file, where.begin + directory.offset, directory.bytes));
  std::vector<Entry> entries;
  size_t at = 0;
  for (uint64_t i = 0; i < directory.count; ++i) {
    CAIRN_ASSIGN_OR_RETURN(Entry entry, ParseEntry(bytes, at));
    entries.push_back(std::move(entry));
  }
  if (at != bytes.size()) return Corrupt("the zip directory has more than its {} records", directory.count);
  CAIRN_RETURN_IF_ERROR(Rename(entries));
  CAIRN_RETURN_IF_ERROR(PlaceRecords(file, where, directory.offset, entries));
  ZipContainer container;
  for (Entry& entry : entries) container.records_.push_back(std::move(entry.record));
  std::ranges::sort(container.records_, {}, &ZipRecord::name);
  const auto twice = std::ranges::adjacent_find(container.records_, {}, &ZipRecord::name);
  if (twice != container.records_.end()) return Corrupt("record {} occurs twice", twice->name);
  return container;
}

const ZipRecord* ZipContainer::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(records_, name, {}, &ZipRecord::name);
  return found != records_.end() && found->name == name ? &*found : nullptr;
}

Result<std::string> ReadRecord(File& file, const ZipRecord& record, uint64_t max_bytes) {
  if (record.bytes > max_bytes)
    return NotSupported("record {} has {} bytes, but at most {} may be read", record.name, record.bytes,
                        max_bytes);
  CAIRN_ASSIGN_OR_RETURN(std::string bytes, ReadBytes(file, record.file_offset, record.bytes));
  if (record.crc != 0 && Crc32(std::as_bytes(std::span(bytes))) != record.crc)
    return Corrupt("record {} at byte {} does not match the checksum in the zip directory; it was damaged",
                   record.name, record.file_offset);
  return bytes;
}

}  // namespace cairn
