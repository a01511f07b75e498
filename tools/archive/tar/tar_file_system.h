// An archived step seen as a directory: TAR/manifest.json, TAR/shard-00000.h5 and so on, read in place.
//
// Code that reads checkpoints can therefore read archived ones: StepReader opens one, VerifyHash proves one,
// and no byte is extracted. Packed files (packed_file.h) appear unpacked, and links to files of the tar as
// those files.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "ckpt/io/read_only_file_system.h"
#include "tools/archive/tar/tar_index.h"

namespace cairn {

class TarFileSystem final : public ReadOnlyFileSystem {
 public:
  // The place's root becomes the one directory. `past_cache`: bytes come from the disk, see
  // past_cache_file.h. Errors: those of ReadTarIndex; Corrupt if a packed entry has no table.
  static Result<std::unique_ptr<TarFileSystem>> Open(FileSystem& fs, const TarPlace& place, bool past_cache);

  // The same by the sidecar, through the page cache: nothing is read until it is needed.
  static Result<std::unique_ptr<TarFileSystem>> Open(FileSystem& fs, const TarPlace& place,
                                                     const ArchiveRecord& record);

  const std::string& root() const { return tar_path_; }
  // With the unpacked sizes of packed files.
  const TarIndex& index() const { return index_; }

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override;
  Result<FileInfo> Stat(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;

 private:
  TarFileSystem(std::string tar_path, TarIndex index, std::shared_ptr<File> tar);
  // The name of a file or directory of the tar, "" for the tar itself; nullopt for a path elsewhere.
  std::optional<std::string> NameOf(std::string path) const;
  Result<const ArchivedFile*> Entry(const std::string& path) const;
  Result<std::unique_ptr<File>> OpenEntry(const ArchivedFile& entry, bool siblings);
  Status ReadSibling(const std::string& name, uint64_t offset, std::span<std::byte> out);
  // Adds a path to its directory, and that one to its own, up to the root.
  void Show(const std::string& path);
  // The file of the tar that a link leads to; null if there is none.
  const ArchivedFile* FileBehind(std::string name, const std::map<std::string, std::string>& links) const;

  const std::string tar_path_;
  const TarIndex index_;
  const std::shared_ptr<File> tar_;
  std::map<std::string, const ArchivedFile*, std::less<>> by_name_;
  std::map<std::string, std::set<std::string>, std::less<>> directories_;  // "" and below -> names
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<File>> siblings_;  // whose weights complete low halves
};

}  // namespace cairn
