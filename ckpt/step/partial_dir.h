// A directory that is being written, and is gone again unless its writing succeeds.
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

// Eight random hex digits, for names that two processes must not share.
std::string NewNonce();

// The directory that `path` lies in: "." for a plain name.
std::string ParentDir(const std::string& path);

// The nearest directory at or above `path` that exists: where its bytes will go.
std::string NearestDir(FileSystem& fs, const std::string& path);

// Fails where `need_bytes` are not free at `path`, which may not exist yet. Errors: NoSpace naming both
// sizes.
Status CheckFreeSpace(FileSystem& fs, const std::string& path, uint64_t need_bytes);

class PartialDir {
 public:
  // Makes `path` and the directories above it. Errors: AlreadyExists; those of the disk.
  static Result<PartialDir> Make(FileSystem& fs, const std::string& path);
  // One that an earlier process left, which no process writes now.
  static PartialDir Adopt(FileSystem& fs, const std::string& path);
  PartialDir(PartialDir&& other) noexcept { *this = std::move(other); }
  PartialDir& operator=(PartialDir&& other) noexcept {
    std::swap(fs_, other.fs_);
    std::swap(path_, other.path_);
    std::swap(made_, other.made_);
    return *this;
  }
  // Unless kept: removes the directory with its files, and those above that Make() made and that are empty.
  ~PartialDir();

  const std::string& path() const { return path_; }
  // The directory has its final name or stays under this one.
  void Keep() { fs_ = nullptr; }

 private:
  PartialDir() = default;

  FileSystem* fs_ = nullptr;
  std::string path_;
  std::vector<std::string> made_;  // directories above it, the outermost first
};

}  // namespace cairn
