// libarchive reads the headers and skips the data. Each entry is checked as it comes: kind, path, directory,
// size. Any other shape is an error, because names become paths later. An entry's data ends, in whole blocks,
// where the next header starts. Its offset is therefore counted back from there, however long its own headers
// are; a truncated tar is detected at the same place.

#include "tools/archive/tar/tar_index.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>
#include <unordered_map>

#include "ckpt/model/layout.h"
#include "ckpt/model/plain_path.h"

namespace cairn {
namespace {

constexpr uint64_t kReadBytes = 64 << 10;   // around a header
constexpr size_t kMaxTarEntries = 1 << 20;  // more than any topology has ranks

struct FreeReader {
  void operator()(archive* a) const { archive_read_free(a); }
};

// Feeds libarchive from a File.
struct Source {
  std::unique_ptr<File> file;
  uint64_t begin = 0;  // of the part
  uint64_t bytes = 0;  // of it
  uint64_t at = 0;     // in it
  std::vector<std::byte> window = std::vector<std::byte>(kReadBytes);
  Status status;
};

la_ssize_t ReadSome(archive* reader, void* context, const void** buffer) {
  auto& source = *static_cast<Source*>(context);
  const uint64_t count = std::min(kReadBytes, source.bytes - source.at);
  source.status = source.file->ReadAt(source.begin + source.at, {source.window.data(), count});
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

using HeaderTaker = std::function<Status(archive_entry*, uint64_t header_offset)>;

// Passes on every header of a part of `file`; returns the offset of the next one. Offsets count from the
// beginning of the part. `shown` is its name in messages.
Result<uint64_t> ReadHeaders(FileSystem& fs, const std::string& shown, const std::string& file,
                             uint64_t begin, uint64_t bytes, const HeaderTaker& take) {
  Source source{.begin = begin, .bytes = bytes};
  CAIRN_ASSIGN_OR_RETURN(source.file, fs.OpenForRead(file));
  const std::unique_ptr<archive, FreeReader> reader(archive_read_new());
  archive_read_support_format_tar(reader.get());
  archive_read_set_callback_data(reader.get(), &source);
  archive_read_set_read_callback(reader.get(), ReadSome);
  archive_read_set_skip_callback(reader.get(), Skip);
  int result = archive_read_open1(reader.get());
  archive_entry* entry = nullptr;
  while (result == ARCHIVE_OK && (result = archive_read_next_header(reader.get(), &entry)) == ARCHIVE_OK)
    CAIRN_RETURN_IF_ERROR(take(entry, archive_read_header_position(reader.get())));
  if (!source.status.ok()) return source.status;
  if (result != ARCHIVE_EOF) {
    const char* text = archive_error_string(reader.get());
    return Corrupt("{}: this is not a complete tar: {}", shown, text == nullptr ? "unreadable" : text);
  }
  return archive_read_header_position(reader.get());
}

// "RUN/step-00000040/shard-00000.h5" -> directory and name; nullopt for any other shape. In a tree the name
// is a path and the second part any name; "RUN/NAME/" is the tree's own directory and has the name "".
std::optional<std::pair<std::string, std::string>> SplitEntryPath(std::string_view path, bool tree,
                                                                  bool directory) {
  if (directory && path.ends_with('/')) path.remove_suffix(1);
  const size_t first = path.find('/');
  if (directory && first != path.npos && path.find('/', first + 1) == path.npos && IsPlainPath(path))
    return std::pair(std::string(path), std::string());
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
  explicit Indexer(Form form) : tree_(form == Form::kFiles) {}

  // Adds the entries of a part of `file`, called `shown` in messages; their offsets count from `base` bytes
  // before the part.
  Status AddFrom(FileSystem& fs, const std::string& shown, const std::string& file, uint64_t begin,
                 uint64_t bytes, uint64_t base) {
    path_ = shown;
    tar_bytes_ = base + bytes;
    const auto add = [&](archive_entry* entry, uint64_t header) { return Add(entry, base + header); };
    CAIRN_ASSIGN_OR_RETURN(const uint64_t end, ReadHeaders(fs, shown, file, begin, bytes, add));
    return PlaceLast(base + end);
  }

  Result<TarIndex> Finish() {
    if (index_.files.empty()) return Corrupt("{}: the tar is empty", path_);
    for (const auto& [name, kind] : kinds_)  // "a" and "a/b" cannot both be files
      for (size_t at = name.find('/'); at != name.npos; at = name.find('/', at + 1))
        if (const auto above = kinds_.find(name.substr(0, at));
            above != kinds_.end() && above->second != EntryKind::kDirectory)
          return Corrupt("{}: entry '{}' lies in a file; nothing was taken from it", path_, name);
    index_.end = end_;
    return std::move(index_);
  }

 private:
  Status Add(archive_entry* entry, uint64_t header_offset) {
    CAIRN_RETURN_IF_ERROR(PlaceLast(header_offset));
    const char* raw_name = archive_entry_pathname(entry);
    const std::string name = raw_name == nullptr ? "?" : raw_name;
    const auto bad = [&](std::string_view what) {
      return Corrupt("{}: entry '{}' {}; this is not an archived step, nothing was taken from it", path_,
                     name, what);
    };
    if (kinds_.size() >= kMaxTarEntries) return bad("is one too many");
    const auto kind = KindOf(entry);
    if (!kind) return bad("is a link, directory or device");
    if (archive_entry_sparse_count(entry) > 0) return bad("is a sparse file");
    const auto split = SplitEntryPath(name, tree_, *kind == EntryKind::kDirectory);
    if (!split)
      return bad(tree_ ? "has a path that leaves RUN/NAME" : "has a path other than RUN/step-N/FILE");
    if (index_.directory.empty()) index_.directory = split->first;
    if (index_.directory != split->first) return bad("belongs to another step");
    if (!archive_entry_size_is_set(entry) || archive_entry_size(entry) < 0) return bad("has no size");
    const auto bytes = static_cast<uint64_t>(archive_entry_size(entry));
    if (bytes > tar_bytes_) return bad("is larger than the tar");
    last_ = {.name = name, .bytes = bytes, .offset = header_offset, .stored_bytes = bytes};
    last_.facts = FactsOf(entry);
    placed_ = false;
    return *kind == EntryKind::kFile ? AddFile(split->second, bad)
                                     : AddOther(*kind, split->second, archive_entry_symlink(entry), bad);
  }

  // nullopt unless it is a file or, in a tree, a directory or symbolic link.
  std::optional<EntryKind> KindOf(archive_entry* entry) const {
    if (archive_entry_hardlink(entry) != nullptr) return std::nullopt;
    const auto type = archive_entry_filetype(entry);
    if (type == AE_IFREG) return EntryKind::kFile;
    if (tree_ && type == AE_IFDIR) return EntryKind::kDirectory;
    if (tree_ && type == AE_IFLNK && archive_entry_symlink(entry) != nullptr) return EntryKind::kLink;
    return std::nullopt;
  }

  static EntryFacts FactsOf(archive_entry* entry) {
    return {.mode = static_cast<uint32_t>(archive_entry_perm(entry)) & 07777u,
            .user = static_cast<uint32_t>(archive_entry_uid(entry)),
            .group = static_cast<uint32_t>(archive_entry_gid(entry)),
            .modified_unix_seconds = archive_entry_mtime(entry),
            .modified_nanoseconds = static_cast<uint32_t>(archive_entry_mtime_nsec(entry))};
  }

  template <typename Bad>
  Status AddFile(std::string name, const Bad& bad) {
    ArchivedFile file = last_;
    file.packed = name.ends_with(kPackedSuffix) && name.size() > kPackedSuffix.size();
    if (file.packed) name.resize(name.size() - kPackedSuffix.size());
    if (file.packed) file.bytes = 0;
    if (!kinds_.emplace(name, EntryKind::kFile).second) return bad("occurs twice");
    file.name = std::move(name);
    index_.files.push_back(std::move(file));
    return OkStatus();
  }

  template <typename Bad>
  Status AddOther(EntryKind kind, const std::string& name, const char* target, const Bad& bad) {
    if (!kinds_.emplace(name, kind).second) return bad("occurs twice");
    if (last_.bytes > 0) return bad("is not a file, but has bytes");
    index_.others.push_back(
        {.name = name, .kind = kind, .target = kind == EntryKind::kLink ? target : "", .facts = last_.facts});
    is_file_ = false;
    return OkStatus();
  }

  // An entry's data ends, in whole blocks, where the next header starts.
  Status PlaceLast(uint64_t next_header) {
    if (std::exchange(placed_, true)) return OkStatus();
    const bool file = std::exchange(is_file_, true);
    const uint64_t blocks_bytes = TarBlocksBytes(last_.bytes);
    if (next_header > tar_bytes_ || next_header < last_.offset + kTarBlockBytes + blocks_bytes)
      return Corrupt("{}: the tar ends within entry '{}'; it was truncated", path_, last_.name);
    if (file) index_.files.back().offset = next_header - blocks_bytes;
    end_ = next_header;
    return OkStatus();
  }

  const bool tree_;
  std::string path_;
  uint64_t tar_bytes_ = 0;  // the end of the file
  ArchivedFile last_;       // with its name in the tar and its header's offset
  bool is_file_ = true;     // that one
  bool placed_ = true;      // its data has its offset
  uint64_t end_ = 0;
  TarIndex index_;
  std::unordered_map<std::string, EntryKind> kinds_;
};

}  // namespace

Result<TarIndex> ReadTarIndex(FileSystem& fs, const TarPlace& place) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t all, StatTar(fs, place));
  if (place.begin > all) return Corrupt("{}: the tar was truncated", place.file);
  Indexer indexer(place.form);
  if (place.pieces.empty())
    CAIRN_RETURN_IF_ERROR(indexer.AddFrom(fs, place.root, place.file, place.begin,
                                          std::min(place.bytes, all - place.begin), place.begin));
  uint64_t base = 0;
  for (size_t i = 0; i < place.pieces.size(); base += place.pieces[i++]) {
    const std::string path = TarPieceName(place.file, i + 1);
    CAIRN_RETURN_IF_ERROR(indexer.AddFrom(fs, path, path, 0, place.pieces[i], base));
  }
  return indexer.Finish();
}

Result<ArchivedFile> ReadLastEntry(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  ArchivedFile last;
  const auto note = [&](archive_entry* entry, uint64_t) {
    const char* name = archive_entry_pathname(entry);
    const la_int64_t bytes = archive_entry_size_is_set(entry) ? archive_entry_size(entry) : -1;
    const auto type = archive_entry_filetype(entry);
    const bool tree = type == AE_IFDIR || type == AE_IFLNK;  // of a member; the last entry is a file
    if (name == nullptr || (type != AE_IFREG && !tree) || bytes < 0)
      return Corrupt("{}: entry '{}' is not a plain file", path, name == nullptr ? "?" : name);
    last.name = tree ? "" : name;
    last.bytes = static_cast<uint64_t>(bytes);
    return OkStatus();
  };
  CAIRN_ASSIGN_OR_RETURN(const uint64_t end, ReadHeaders(fs, path, path, 0, info.bytes, note));
  if (last.name.empty() || last.bytes > end || TarBlocksBytes(last.bytes) > end)
    return Corrupt("{}: the tar ends within its last entry; it was truncated", path);
  last.offset = end - TarBlocksBytes(last.bytes);
  return last;
}

}  // namespace cairn
