#include "tools/archive/tar_file_system.h"

#include <algorithm>

#include "tools/archive/past_cache_file.h"

namespace cairn {
namespace {

// A stretch of the tar.
class TarMemberFile final : public ReadOnlyFile {
 public:
  TarMemberFile(std::string path, std::shared_ptr<File> tar, const TarEntry& entry)
      : path_(std::move(path)), tar_(std::move(tar)), begin_(entry.offset), bytes_(entry.bytes) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    if (offset > bytes_ || bytes.size() > bytes_ - offset)
      return Corrupt("{} ends at byte {}", path_, bytes_);
    return tar_->ReadAt(begin_ + offset, bytes);
  }
  const std::string& path() const override { return path_; }

 private:
  const std::string path_;
  const std::shared_ptr<File> tar_;
  const uint64_t begin_;
  const uint64_t bytes_;
};

}  // namespace

Result<std::unique_ptr<TarFileSystem>> TarFileSystem::Open(FileSystem& fs, const std::string& tar_path,
                                                           bool past_cache) {
  CAIRN_ASSIGN_OR_RETURN(TarIndex index, ReadTarIndex(fs, tar_path));
  auto opened = past_cache ? OpenPastCache(fs, tar_path) : fs.OpenForRead(tar_path);
  if (!opened.ok()) return opened.status();
  std::shared_ptr<File> tar = std::move(opened).value();
  return std::unique_ptr<TarFileSystem>(new TarFileSystem(tar_path, std::move(index), std::move(tar)));
}

Result<const TarEntry*> TarFileSystem::Entry(const std::string& path) const {
  const std::string prefix = JoinPath(tar_path_, "");
  const TarEntry* entry =
      path.starts_with(prefix) ? index_.Find(std::string_view(path).substr(prefix.size())) : nullptr;
  if (entry == nullptr) return NotFound("{}: no such entry in the tar", path);
  return entry;
}

Result<std::unique_ptr<File>> TarFileSystem::OpenForRead(const std::string& path, Direct) {
  CAIRN_ASSIGN_OR_RETURN(const TarEntry* entry, Entry(path));
  return std::unique_ptr<File>(std::make_unique<TarMemberFile>(path, tar_, *entry));
}

Result<FileInfo> TarFileSystem::Stat(const std::string& path) {
  if (path == tar_path_) return FileInfo{.is_directory = true};
  CAIRN_ASSIGN_OR_RETURN(const TarEntry* entry, Entry(path));
  return FileInfo{false, entry->bytes, entry->modified_unix_seconds, entry->modified_unix_seconds};
}

Result<std::vector<std::string>> TarFileSystem::List(const std::string& directory) {
  if (directory != tar_path_) return NotFound("{}: no such directory in the tar", directory);
  std::vector<std::string> names;
  for (const TarEntry& entry : index_.entries) names.push_back(entry.name);
  std::ranges::sort(names);
  return names;
}

}  // namespace cairn
