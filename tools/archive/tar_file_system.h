// An archived step seen as a directory: TAR/manifest.json, TAR/shard-00000.h5 and so on, read in place.
//
// So whatever reads checkpoints reads archived ones too: StepReader opens one, VerifyHash proves one, without
// a byte extracted.
#pragma once

#include <memory>
#include <string>

#include "tools/archive/read_only_file_system.h"
#include "tools/archive/tar_index.h"

namespace cairn {

class TarFileSystem final : public ReadOnlyFileSystem {
 public:
  // `tar_path` becomes the one directory. `past_cache`: bytes come from the disk, see past_cache_file.h.
  // Errors: those of ReadTarIndex.
  static Result<std::unique_ptr<TarFileSystem>> Open(FileSystem& fs, const std::string& tar_path,
                                                     bool past_cache);

  const TarIndex& index() const { return index_; }

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override;
  Result<FileInfo> Stat(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;

 private:
  TarFileSystem(std::string tar_path, TarIndex index, std::shared_ptr<File> tar)
      : tar_path_(std::move(tar_path)), index_(std::move(index)), tar_(std::move(tar)) {}
  Result<const TarEntry*> Entry(const std::string& path) const;

  const std::string tar_path_;
  const TarIndex index_;
  const std::shared_ptr<File> tar_;
};

}  // namespace cairn
