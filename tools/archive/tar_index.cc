#include "tools/archive/tar_index.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <unordered_set>

#include "ckpt/layout.h"

namespace cairn {
namespace {

constexpr uint64_t kReadBytes = 64 << 10;  // around a header
constexpr uint64_t kTarBlockBytes = 512;
constexpr size_t kMaxEntries = 1 << 20;  // no topology has more ranks

struct FreeReader {
  void operator()(archive* a) const { archive_read_free(a); }
};

// Feeds libarchive from a File.
struct Source {
  std::unique_ptr<File> file;
  uint64_t bytes = 0;
  uint64_t at = 0;
  std::vector<std::byte> window = std::vector<std::byte>(kReadBytes);
  Status status;
};

la_ssize_t ReadSome(archive* reader, void* context, const void** buffer) {
  auto& source = *static_cast<Source*>(context);
  const uint64_t count = std::min(kReadBytes, source.bytes - source.at);
  source.status = source.file->ReadAt(source.at, {source.window.data(), count});
  if (!source.status.ok()) {
    archive_set_error(reader, EIO, "%s", source.status.message().c_str());
    return -1;
  }
  source.at += count;
  *buffer = source.window.data();
  return static_cast<la_ssize_t>(count);
}

la_int64_t Skip(archive*, void* context, la_int64_t request) {
  auto& source = *static_cast<Source*>(context);
  const uint64_t count = std::min<uint64_t>(request, source.bytes - source.at);
  source.at += count;
  return static_cast<la_int64_t>(count);
}

// "RUN/step-00000040/shard-00000.h5" -> directory and name; nothing for any other shape. Of a tree the name
// is a path and the second part any name.
std::optional<std::pair<std::string, std::string>> SplitEntryPath(std::string_view path, bool tree) {
  const size_t first = path.find('/');
  const size_t second = first == path.npos ? path.npos : path.find('/', first + 1);
  if (second == path.npos) return std::nullopt;
  const std::string_view run = path.substr(0, first), step = path.substr(first + 1, second - first - 1);
  const std::string_view name = path.substr(second + 1);
  if (!IsPlainFileName(run) || !IsPlainFileName(step)) return std::nullopt;
  if (tree ? !IsPlainPath(name) : !ParseStepDirName(step) || !IsPlainFileName(name)) return std::nullopt;
  return std::pair(std::string(path.substr(0, second)), std::string(name));
}

// Builds a TarIndex from libarchive's entries.
class Indexer {
 public:
  Indexer(std::string path, uint64_t tar_bytes) : path_(std::move(path)), tar_bytes_(tar_bytes) {
    std::string name = std::filesystem::path(path_).filename().string();
    if (name.ends_with(kPartialSuffix)) name.resize(name.size() - kPartialSuffix.size());  // repaired
    const auto parts = ParseTarName(name);
    tree_ = parts && parts->form == Form::kFiles;
  }

  Status Add(archive_entry* entry, uint64_t header_offset) {
    CAIRN_RETURN_IF_ERROR(PlaceLast(header_offset));
    const char* raw_name = archive_entry_pathname(entry);
    const std::string name = raw_name == nullptr ? "?" : raw_name;
    const auto bad = [&](std::string_view what) {
      return Corrupt("{}: entry '{}' {}; this is not an archived step, nothing was taken from it", path_,
                     name, what);
    };
    if (index_.entries.size() >= kMaxEntries) return bad("is one too many");
    if (archive_entry_hardlink(entry) != nullptr || archive_entry_filetype(entry) != AE_IFREG)
      return bad("is a link, directory or device");
    if (archive_entry_sparse_count(entry) > 0) return bad("is a sparse file");
    auto split = SplitEntryPath(name, tree_);
    if (!split)
      return bad(tree_ ? "has a path that leaves RUN/NAME" : "has a path other than RUN/step-N/FILE");
    const bool packed = split->second.ends_with(kPackedSuffix) && split->second.size() > kPackedSuffix.size();
    if (packed) split->second.resize(split->second.size() - kPackedSuffix.size());
    if (index_.directory.empty()) index_.directory = split->first;
    if (index_.directory != split->first) return bad("belongs to another step");
    if (!names_.insert(split->second).second) return bad("is there twice");
    if (!archive_entry_size_is_set(entry) || archive_entry_size(entry) < 0) return bad("has no size");
    const auto bytes = static_cast<uint64_t>(archive_entry_size(entry));
    if (bytes > tar_bytes_) return bad("is larger than the tar");
    index_.entries.push_back({split->second, header_offset, bytes, packed, archive_entry_mtime(entry)});
    return OkStatus();
  }

  Result<TarIndex> Finish(uint64_t end_offset) {
    CAIRN_RETURN_IF_ERROR(PlaceLast(end_offset));
    if (index_.entries.empty()) return Corrupt("{}: an empty tar", path_);
    for (const TarEntry& entry : index_.entries)  // "a" and "a/b" cannot both be files
      for (size_t at = entry.name.find('/'); at != entry.name.npos; at = entry.name.find('/', at + 1))
        if (names_.contains(entry.name.substr(0, at)))
          return Corrupt("{}: entry '{}' lies in a file; nothing was taken from it", path_, entry.name);
    return std::move(index_);
  }

 private:
  // An entry's data ends, filled up to whole blocks, where the next header starts.
  Status PlaceLast(uint64_t next_header) {
    if (index_.entries.empty()) return OkStatus();
    TarEntry& last = index_.entries.back();
    const uint64_t blocks_bytes = (last.bytes + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes;
    const uint64_t header = last.offset;
    if (next_header > tar_bytes_ || next_header < header + kTarBlockBytes + blocks_bytes)
      return Corrupt("{}: the tar ends within entry '{}'; it was cut short", path_, last.name);
    last.offset = next_header - blocks_bytes;
    return OkStatus();
  }

  const std::string path_;
  const uint64_t tar_bytes_;
  bool tree_ = false;
  TarIndex index_;
  std::unordered_set<std::string> names_;
};

}  // namespace

bool IsPlainPath(std::string_view path) {
  constexpr size_t kMaxBytes = 3000;
  if (path.size() > kMaxBytes) return false;
  for (size_t at = 0; at <= path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    if (!IsPlainFileName(path.substr(at, slash - at))) return false;
    at = slash + 1;
  }
  return true;
}

TarIndex IndexOf(const ArchiveRecord& record) {
  TarIndex index{.directory = record.directory, .entries = {}};
  for (const ArchivedFile& file : record.files)
    index.entries.push_back({file.name, file.offset, file.stored_bytes, file.packed, 0});
  return index;
}

const TarEntry* TarIndex::Find(std::string_view name) const {
  const auto found = std::ranges::find(entries, name, &TarEntry::name);
  return found == entries.end() ? nullptr : &*found;
}

Result<TarIndex> ReadTarIndex(FileSystem& fs, const std::string& path) {
  Source source;
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  source.bytes = info.bytes;
  CAIRN_ASSIGN_OR_RETURN(source.file, fs.OpenForRead(path));
  const std::unique_ptr<archive, FreeReader> reader(archive_read_new());
  archive_read_support_format_tar(reader.get());
  archive_read_set_callback_data(reader.get(), &source);
  archive_read_set_read_callback(reader.get(), ReadSome);
  archive_read_set_skip_callback(reader.get(), Skip);
  Indexer indexer(path, info.bytes);
  int result = archive_read_open1(reader.get());
  archive_entry* entry = nullptr;
  while (result == ARCHIVE_OK && (result = archive_read_next_header(reader.get(), &entry)) == ARCHIVE_OK)
    CAIRN_RETURN_IF_ERROR(indexer.Add(entry, archive_read_header_position(reader.get())));
  if (!source.status.ok()) return source.status;
  if (result != ARCHIVE_EOF) {
    const char* text = archive_error_string(reader.get());
    return Corrupt("{}: no whole tar: {}", path, text == nullptr ? "unreadable" : text);
  }
  return indexer.Finish(archive_read_header_position(reader.get()));
}

}  // namespace cairn
