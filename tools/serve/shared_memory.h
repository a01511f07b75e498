// Memory that the helper and its trainer both see, mapped: a memfd, or a file on a file system in memory,
// which can become a file of a step without being copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ckpt/base/mapping.h"
#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// True for a directory on tmpfs.
bool IsInMemory(const std::string& directory);

class SharedMemory {
 public:
  // New memory of zeros. It has no pages yet: the trainer touches them, with several threads and while it
  // copies, and gets the error if memory is short. Errors: NoSpace.
  static Result<SharedMemory> Make(uint64_t bytes);
  // A new file of zeros, whose pages exist. Locked, so that OpenLocalPlace leaves it. The name goes with the
  // object. Errors: NoSpace; those of the directory.
  static Result<SharedMemory> MakeFile(FileSystem& fs, const std::string& path, uint64_t bytes);

  std::span<std::byte> bytes() const { return mapping_.bytes(); }
  int descriptor() const { return file_ ? file_->lock.fd().get() : descriptor_.get(); }
  std::string path() const { return file_ ? file_->lock.path() : ""; }
  // False: nobody else may give the file another name.
  bool IsAtItsPath() const { return file_ && file_->lock.IsAtItsPath(); }
  // True if a step has the file, or may have it.
  bool IsHeld() const;

 private:
  SharedMemory() = default;
  static Result<SharedMemory> Map(SharedMemory memory, uint64_t bytes);

  struct NamedFile {
    FileSystem& fs;
    FileLock lock;
    ~NamedFile() { (void)fs.RemoveFile(lock.path()); }
  };
  UniqueFd descriptor_;  // of a memfd
  std::unique_ptr<NamedFile> file_;
  Mapping mapping_;
};

}  // namespace cairn
