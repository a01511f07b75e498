// A directory that is being written; it is removed again unless the write succeeds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/file_lock.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// Eight random hex digits, for names that two processes must not share.
std::string NewNonce();

// Fails if `path`, which need not exist yet, is a committed step or lies in one; links are followed. A step
// holds what its manifest lists: retention keeps one with other files forever. Errors: InvalidArgument.
Status CheckOutsideSteps(FileSystem& fs, const std::string& path);

// MakeDirs() for a path outside of committed steps.
Status MakeOutputDir(FileSystem& fs, const std::string& path);

// Checks a place to write to, which need not exist yet: outside of committed steps, and `need_bytes` are
// free. Errors: those of CheckOutsideSteps; NoSpace naming both sizes.
Status CheckFreeSpace(FileSystem& fs, const std::string& path, uint64_t need_bytes);

class PartialDir {
 public:
  // Makes `path` and the directories above it. Errors: AlreadyExists; those of CheckOutsideSteps and of the
  // disk.
  static Result<PartialDir> Make(FileSystem& fs, const std::string& path);
  // Makes FINAL.partial-NONCE, for Publish(). Its lock ends with the process; partial directories of FINAL
  // that killed processes left are removed first. Errors: those of Make().
  static Result<PartialDir> MakeFor(FileSystem& fs, const std::string& final_path);
  // Takes over one that an earlier process left and that no process writes now.
  static PartialDir Adopt(FileSystem& fs, const std::string& path);
  PartialDir(PartialDir&& other) noexcept { *this = std::move(other); }
  PartialDir& operator=(PartialDir&& other) noexcept {
    std::swap(fs_, other.fs_);
    std::swap(path_, other.path_);
    std::swap(made_, other.made_);
    std::swap(final_path_, other.final_path_);
    std::swap(lock_, other.lock_);
    return *this;
  }
  // Unless kept: removes the directory with its files, and those above that Make() made and that are empty.
  ~PartialDir();

  const std::string& path() const { return path_; }
  // The directory stays, under its final name or under this one.
  void Keep() { fs_ = nullptr; }
  // Gives a directory of MakeFor() its final name, durably.
  Status Publish();

 private:
  PartialDir() = default;

  FileSystem* fs_ = nullptr;
  std::string path_;
  std::vector<std::string> made_;  // directories above it, the outermost first
  std::string final_path_;         // of MakeFor()
  std::optional<FileLock> lock_;
};

// Removes every directory of this process that MakeFor() made and nobody published, because a signal is about
// to end the process: Publish() waits forever from now on.
void RemovePartialDirs();

}  // namespace cairn
