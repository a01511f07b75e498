// The constructor makes two maps of an index: path to entry, and directory to names. Links are followed
// there, once, and only to files of the tar. A packed file's size comes from its table, or from the sidecar;
// with a sidecar nothing of the tar is read until it is needed. A packed master needs weights from another
// entry. That entry is opened without its own siblings, so a damaged table cannot cause endless recursion.

#include "tools/archive/tar/tar_file_system.h"

#include <algorithm>
#include <filesystem>

#include "tools/archive/tar/packed_file.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

// A part of the tar.
class TarMemberFile final : public ReadOnlyFile {
 public:
  TarMemberFile(std::string path, FileRange range) : path_(std::move(path)), range_(std::move(range)) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    if (offset > range_.bytes || bytes.size() > range_.bytes - offset)
      return Corrupt("{} ends at byte {}", path_, range_.bytes);
    return range_.file->ReadAt(range_.offset + offset, bytes);
  }
  const std::string& path() const override { return path_; }

 private:
  const std::string path_;
  const FileRange range_;
};

}  // namespace

TarFileSystem::TarFileSystem(std::string tar_path, TarIndex index, std::shared_ptr<File> tar)
    : tar_path_(std::move(tar_path)), index_(std::move(index)), tar_(std::move(tar)) {
  directories_[""];
  for (const ArchivedFile& file : index_.files) {
    by_name_[file.name] = &file;
    Show(file.name);
  }
  std::map<std::string, std::string> links;
  for (const ArchivedEntry& entry : index_.others)
    if (entry.kind == EntryKind::kLink)
      links[entry.name] = entry.target;
    else if (!entry.name.empty() && directories_.try_emplace(entry.name).second)
      Show(entry.name);
  for (const auto& [name, target] : links)
    if (const ArchivedFile* file = FileBehind(name, links)) {
      by_name_[name] = file;
      Show(name);
    }
}

void TarFileSystem::Show(const std::string& path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t slash = std::min(path.find('/', begin), path.size());
    directories_[begin == 0 ? "" : path.substr(0, begin - 1)].insert(path.substr(begin, slash - begin));
    begin = slash + 1;
  }
}

const ArchivedFile* TarFileSystem::FileBehind(std::string name,
                                              const std::map<std::string, std::string>& links) const {
  constexpr int kMaxLinks = 40;  // as many as Linux follows
  for (int i = 0; i < kMaxLinks; ++i) {
    const auto link = links.find(name);
    if (link == links.end()) break;
    const std::filesystem::path below = std::filesystem::path(name).parent_path();
    name = (below / link->second).lexically_normal().string();
  }
  const auto file = by_name_.find(name);
  return file == by_name_.end() ? nullptr : file->second;
}

Result<std::unique_ptr<TarFileSystem>> TarFileSystem::Open(FileSystem& fs, const TarPlace& place,
                                                           bool past_cache) {
  CAIRN_ASSIGN_OR_RETURN(TarIndex index, ReadTarIndex(fs, place));
  CAIRN_ASSIGN_OR_RETURN(auto tar, OpenTar(fs, place, past_cache));
  for (ArchivedFile& file : index.files) {
    if (!file.packed) continue;
    Result<PackedTable> table = ReadPackedTable({tar, file.offset, file.stored_bytes});
    if (!table.ok()) return table.status().WithContext(JoinPath(place.root, file.name));
    file.bytes = table->bytes;
  }
  return std::unique_ptr<TarFileSystem>(new TarFileSystem(place.root, std::move(index), std::move(tar)));
}

Result<std::unique_ptr<TarFileSystem>> TarFileSystem::Open(FileSystem& fs, const TarPlace& place,
                                                           const ArchiveRecord& record) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, StatTar(fs, place));
  for (const ArchivedFile& file : record.files)
    if (file.offset > bytes || file.stored_bytes > bytes - file.offset)
      return Corrupt("{}: it has {} bytes, but {} should be after them; it was truncated", place.file, bytes,
                     file.name);
  CAIRN_ASSIGN_OR_RETURN(auto tar, OpenTar(fs, place, /*past_cache=*/false));
  TarIndex index{.directory = record.directory, .files = record.files};
  if (record.tree) index.others = record.tree->entries;
  return std::unique_ptr<TarFileSystem>(new TarFileSystem(place.root, std::move(index), std::move(tar)));
}

// As in any file system, "directory/" is "directory".
std::optional<std::string> TarFileSystem::NameOf(std::string path) const {
  while (path.ends_with('/')) path.pop_back();
  if (path == tar_path_) return "";
  const std::string prefix = JoinPath(tar_path_, "");
  return path.starts_with(prefix) ? std::optional(path.substr(prefix.size())) : std::nullopt;
}

Result<const ArchivedFile*> TarFileSystem::Entry(const std::string& path) const {
  const std::optional<std::string> name = NameOf(path);
  const auto found = name ? by_name_.find(*name) : by_name_.end();
  if (found == by_name_.end()) return NotFound("{}: no such entry in the tar", path);
  return found->second;
}

Result<std::unique_ptr<File>> TarFileSystem::OpenForRead(const std::string& path, Direct) {
  CAIRN_ASSIGN_OR_RETURN(const ArchivedFile* entry, Entry(path));
  return OpenEntry(*entry, /*siblings=*/true);
}

Result<std::unique_ptr<File>> TarFileSystem::OpenEntry(const ArchivedFile& entry, bool siblings) {
  const std::string path = JoinPath(tar_path_, entry.name);
  FileRange range{tar_, entry.offset, entry.stored_bytes};
  if (!entry.packed) return std::unique_ptr<File>(std::make_unique<TarMemberFile>(path, std::move(range)));
  SiblingReader reader;  // none: weights that complete halves are whole themselves
  if (siblings)
    reader = [this](const std::string& name, uint64_t offset, std::span<std::byte> out) {
      return ReadSibling(name, offset, out);
    };
  CAIRN_ASSIGN_OR_RETURN(auto file, PackedFile::Open(path, std::move(range), std::move(reader)));
  if (file->bytes() != entry.bytes)
    return Corrupt("{}: it unpacks to {} bytes, not {}", path, file->bytes(), entry.bytes);
  return std::unique_ptr<File>(std::move(file));
}

Status TarFileSystem::ReadSibling(const std::string& name, uint64_t offset, std::span<std::byte> out) {
  std::shared_ptr<File> file;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<File>& known = siblings_[name];
    if (!known) {
      const auto entry = by_name_.find(name);
      if (entry == by_name_.end()) return NotFound("{}: no such entry in the tar", JoinPath(tar_path_, name));
      CAIRN_ASSIGN_OR_RETURN(known, OpenEntry(*entry->second, /*siblings=*/false));
    }
    file = known;
  }
  return file->ReadAt(offset, out);
}

Result<FileInfo> TarFileSystem::Stat(const std::string& path) {
  if (const std::optional<std::string> name = NameOf(path); name && directories_.contains(*name))
    return FileInfo{.kind = FileKind::kDirectory};
  CAIRN_ASSIGN_OR_RETURN(const ArchivedFile* entry, Entry(path));
  const int64_t modified = entry->facts.modified_unix_seconds;
  return FileInfo{FileKind::kFile, entry->bytes, modified, modified};
}

Result<std::vector<std::string>> TarFileSystem::List(const std::string& directory) {
  const std::optional<std::string> name = NameOf(directory);
  const auto found = name ? directories_.find(*name) : directories_.end();
  if (found == directories_.end()) return NotFound("{}: no such directory in the tar", directory);
  return std::vector<std::string>(found->second.begin(), found->second.end());
}

}  // namespace cairn
