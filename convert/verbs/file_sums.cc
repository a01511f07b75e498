// Finding and checking are separate: a caller knows how many bytes a check reads before it begins. A
// zip is recognised by its first bytes; the zips inside .distcp files are found through .metadata, once for
// each directory. The checker reads everything through one window, and collects problems instead of stopping
// at the first: one damaged file does not hide another.

#include "convert/verbs/file_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "ckpt/base/sha256.h"
#include "ckpt/io/open_files.h"
#include "ckpt/io/window_file.h"
#include "ckpt/model/layout.h"
#include "convert/formats/dcp/dcp_index.h"
#include "convert/torch/crc32_sum.h"

namespace cairn {
namespace {

constexpr uint64_t kWindowBytes = 4 << 20;
constexpr uint64_t kMaxSumsBytes = 16 << 20;

// True if the first bytes are those of a zip's first record.
Result<bool> IsZipAt(File& file, uint64_t begin) {
  std::array<std::byte, 4> start{};
  CAIRN_RETURN_IF_ERROR(file.ReadAt(begin, start));
  return std::memcmp(start.data(), "PK\3\4", 4) == 0;
}
bool IsZip(FileSystem& fs, const std::string& path) {
  const auto file = fs.OpenForRead(path);
  if (!file.ok()) return false;
  const Result<bool> is_zip = IsZipAt(**file, 0);
  return is_zip.ok() && *is_zip;
}

Result<std::vector<Sha256Sum>> ReadSums(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, kMaxSumsBytes));
  auto sums = ParseSha256Sums(text);
  if (!sums.ok()) return sums.status().WithContext(path);
  for (const Sha256Sum& sum : *sums)
    if (!IsPlainFileName(sum.name))
      return Corrupt("{}: it names a file outside of its directory: {:.100}", path, sum.name);
  return sums;
}

// The zip in a part of a file; none if it is of torch.save's older form.
Result<std::optional<ZipContainer>> ZipIn(File& file, Stretch where) {
  WindowFile windows(file, where.end);
  CAIRN_ASSIGN_OR_RETURN(const bool is_zip, IsZipAt(windows, where.begin));
  if (!is_zip) return std::optional<ZipContainer>();
  CAIRN_ASSIGN_OR_RETURN(ZipContainer zip, ZipContainer::Read(windows, where));
  return std::optional(std::move(zip));
}

void AddBytes(FileSystem& fs, const std::string& path, FileSums& sums) {
  const auto info = fs.Stat(path);
  sums.bytes += info.ok() ? info->bytes : 0;
}

// A DCP has checksums only if its .metadata can be read, which opening it has shown.
void AddDcpItems(FileSystem& fs, const std::string& directory, const std::string& prefix, FileSums& sums) {
  const auto index = ReadDcpIndex(fs, prefix.empty() ? directory : JoinPath(directory, prefix));
  if (!index.ok()) return;
  const auto add = [&](const DcpItem& item) { sums.items.emplace_back(prefix + item.file, item.where); };
  for (const DcpTensor& tensor : index->tensors)
    for (const DcpChunk& chunk : tensor.chunks) add(chunk.item);
  for (const DcpBytes& bytes : index->bytes) add(bytes.item);
}

class SumChecker {
 public:
  SumChecker(FileSystem& fs, const std::string& directory, const std::function<void(uint64_t)>& progress)
      : fs_(fs), directory_(directory), progress_(progress), window_(kWindowBytes) {}

  void CheckDigest(const std::string& name, const std::string& digest) {
    const std::string path = JoinPath(directory_, name);
    Sha256 sum;
    const Status status = Open(path, [&](File& file, uint64_t bytes) {
      return Each(file, {0, bytes}, [&](std::span<const std::byte> part) { sum.Update(part); });
    });
    if (!status.ok()) return report_.Add(status, path);
    const std::string found = sum.FinishHex();
    if (found != digest)
      Add(path, {},
          fmt::format("its SHA-256 is {}, but {} says {}; it was changed", found, kSha256SumsName, digest));
  }

  // `where`: a part of the file; all of it by default.
  void CheckZip(const std::string& name, std::optional<Stretch> where = {}) {
    const std::string path = JoinPath(directory_, name);
    const Status status = Open(path, [&](File& file, uint64_t bytes) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const std::optional<ZipContainer> zip,
                             ZipIn(file, where.value_or(Stretch{0, bytes})));
      if (!zip) return OkStatus();
      for (const ZipRecord& record : zip->records()) CAIRN_RETURN_IF_ERROR(CheckRecord(path, file, record));
      return OkStatus();
    });
    if (!status.ok()) report_.Add(status, path);
  }

  VerifyReport Finish() { return std::move(report_); }

 private:
  template <typename Use>
  Status Open(const std::string& path, Use use) {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(path));
    CAIRN_ASSIGN_OR_RETURN(const auto file, fs_.OpenForRead(path));
    return use(*file, info.bytes);
  }

  Status CheckRecord(const std::string& path, File& file, const ZipRecord& record) {
    if (record.crc == 0) return OkStatus();
    uint32_t crc = 0;
    uint64_t end = 0;
    Crc32Sum sum(record.bytes);
    CAIRN_RETURN_IF_ERROR(Each(file, {record.file_offset, record.file_offset + record.bytes},
                               [&](std::span<const std::byte> part) {
                                 crc = Crc32Sum::Extend(crc, part);
                                 end += part.size();
                               }));
    sum.Add(end, crc);
    const uint32_t found = sum.Finish();
    if (found != record.crc)
      Add(path, record.file_offset,
          fmt::format("record {} of {} bytes has the CRC-32 {:08x}, its zip says {:08x}; the file is damaged",
                      record.name, record.bytes, found, record.crc));
    return OkStatus();
  }

  template <typename Take>
  Status Each(File& file, Stretch where, Take take) {
    for (uint64_t at = where.begin; at < where.end;) {
      const auto part = std::span(window_).first(std::min<uint64_t>(kWindowBytes, where.end - at));
      CAIRN_RETURN_IF_ERROR(file.ReadAt(at, part));
      take(part);
      at += part.size();
      report_.bytes_checked += part.size();
      if (progress_) progress_(report_.bytes_checked);
    }
    return OkStatus();
  }

  void Add(const std::string& path, std::optional<uint64_t> offset, std::string what) {
    report_.problems.push_back({path, offset, "", std::move(what)});
  }

  FileSystem& fs_;
  const std::string& directory_;
  const std::function<void(uint64_t)>& progress_;
  std::vector<std::byte> window_;
  VerifyReport report_;
};

}  // namespace

Result<FileSums> FindFileSums(FileSystem& fs, const std::string& directory,
                              const std::vector<std::string>& files) {
  FileSums sums = FindZips(fs, directory, files);
  const std::string path = JoinPath(directory, std::string(kSha256SumsName));
  if (!fs.Stat(path).ok()) return sums;
  CAIRN_ASSIGN_OR_RETURN(sums.digests, ReadSums(fs, path));
  for (const auto& [name, digest] : sums.digests) AddBytes(fs, JoinPath(directory, name), sums);
  return sums;
}

FileSums FindZips(FileSystem& fs, const std::string& directory, const std::vector<std::string>& files) {
  FileSums sums;
  std::set<std::string> of_dcp;  // directories that have some
  for (const std::string& name : files) {
    if (name.ends_with(".distcp")) {
      const size_t slash = name.rfind('/');
      of_dcp.insert(slash == name.npos ? "" : name.substr(0, slash + 1));
      AddBytes(fs, JoinPath(directory, name), sums);
      continue;
    }
    if (!IsZip(fs, JoinPath(directory, name))) continue;
    sums.zips.push_back(name);
    AddBytes(fs, JoinPath(directory, name), sums);
  }
  for (const std::string& prefix : of_dcp) AddDcpItems(fs, directory, prefix, sums);
  return sums;
}

Result<std::vector<SummedRecord>> RecordsOf(FileSystem& fs, const std::string& directory,
                                            const std::vector<std::string>& files, const FileSums& sums) {
  std::vector<SummedRecord> records;
  OpenFiles open(fs, directory);
  const auto add = [&](const std::string& name, Stretch where) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const auto file, open.Get(name, Direct::kOff));
    CAIRN_ASSIGN_OR_RETURN(const std::optional<ZipContainer> zip, ZipIn(*file, where));
    if (!zip) return OkStatus();
    const auto number = static_cast<uint32_t>(std::ranges::find(files, name) - files.begin());
    for (const ZipRecord& record : zip->records()) records.push_back({number, record});
    return OkStatus();
  };
  for (const std::string& name : sums.zips) {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(JoinPath(directory, name)));
    CAIRN_RETURN_IF_ERROR(add(name, {0, info.bytes}));
  }
  for (const auto& [name, where] : sums.items) CAIRN_RETURN_IF_ERROR(add(name, where));
  return records;
}

VerifyReport CheckFileSums(FileSystem& fs, const std::string& directory, const FileSums& sums,
                           const std::function<void(uint64_t)>& progress) {
  SumChecker checker(fs, directory, progress);
  for (const auto& [name, digest] : sums.digests) checker.CheckDigest(name, digest);
  for (const std::string& name : sums.zips) checker.CheckZip(name);
  for (const auto& [name, where] : sums.items) checker.CheckZip(name, where);
  return checker.Finish();
}

}  // namespace cairn
