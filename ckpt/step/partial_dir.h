// A directory that a command makes, and removes again unless the command succeeds: by its mark (dir_mark.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/base/nonce.h"
#include "ckpt/io/file_lock.h"
#include "ckpt/io/file_system.h"
#include "ckpt/step/dir_mark.h"

namespace cairn {

// Fails if `path`, which need not exist yet, is a committed step or lies in one; links are followed. A step
// holds what its manifest lists: retention keeps one with other files forever. Errors: InvalidArgument.
Status CheckOutsideSteps(FileSystem& fs, const std::string& path);

// MakeDirs() for a path outside of committed steps.
Status MakeOutputDir(FileSystem& fs, const std::string& path);

// Checks a place to write to, which need not exist yet: outside of committed steps, and with room for
// `need_bytes`. Errors: those of CheckOutsideSteps; NoSpace naming both sizes.
Status CheckFreeSpace(FileSystem& fs, const std::string& path, uint64_t need_bytes);

// Reports on stderr, in one line, what a command leaves in place although it looks like Cairn's.
void ReportLeft(const Status& why);

// Removes what killed commands left of the output `path`: PATH.partial-NONCE directories, and PATH itself if
// a command made it as a run directory and nothing is in it. What is still being written stays. What only
// looks like a leftover stays, too, and is passed to ReportLeft().
void RemoveLeftovers(FileSystem& fs, const std::string& path);

// Before `path` is written: RemoveLeftovers(). Errors: AlreadyExists if something has the name.
Status ClearPlace(FileSystem& fs, const std::string& path);

class PartialDir {
 public:
  // Makes `path` with its mark, and the directories above it. A lock on the mark ends with the process. It
  // may get the name `final_path` later. Errors: AlreadyExists; those of CheckOutsideSteps and of the disk.
  static Result<PartialDir> Make(FileSystem& fs, const std::string& path, const MarkedContents& contents,
                                 const std::string& final_path = "");
  // Makes FINAL.partial-NONCE, after ClearPlace().
  static Result<PartialDir> MakeFor(FileSystem& fs, const std::string& final_path,
                                    const MarkedContents& contents);
  // Takes over one that an earlier process left and that no process writes now.
  static Result<PartialDir> Adopt(FileSystem& fs, const std::string& path, const MarkedContents& contents,
                                  const std::string& final_path = "");
  PartialDir(PartialDir&& other) noexcept { *this = std::move(other); }
  PartialDir& operator=(PartialDir&& other) noexcept {
    std::swap(fs_, other.fs_);
    std::swap(path_, other.path_);
    std::swap(made_, other.made_);
    std::swap(final_path_, other.final_path_);
    std::swap(lock_, other.lock_);
    return *this;
  }
  // Unless it was published, kept or left: RemoveMarked(), and the directories above that Make() made and
  // that are empty.
  ~PartialDir();

  const std::string& path() const { return path_; }
  // The directory stays under its name, for good: its mark goes.
  void Keep();
  // It stays with its mark: a later command adopts or removes it.
  void Leave();
  // Durably gives the final name to the directory, or to one file or directory in it. No signal removes half
  // of it under that name. Errors: AlreadyExists if something has the name by now; nothing has changed.
  Status Rename(const std::string& part = "");
  // The same, and Keep(); what is beside the part goes with this object.
  Status Publish(const std::string& part = "");

 private:
  PartialDir() = default;
  Status MakeLive(const std::string& path, const MarkedContents& contents);
  Status MakeAbove(const std::string& path);
  Status Mark(const std::string& path, const MarkedContents& contents);

  FileSystem* fs_ = nullptr;
  std::string path_;
  std::vector<std::string> made_;  // directories above it, the outermost first
  std::string final_path_;         // empty: it has its name
  std::optional<FileLock> lock_;
};

// Removes every directory of this process that is not published, kept or left, because a signal is about to
// end the process: those three wait forever from now on.
void RemovePartialDirs();

}  // namespace cairn
