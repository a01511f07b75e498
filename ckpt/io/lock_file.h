// A lock file that names its holder: RUN/.lock of a run directory, STORE/.lock of an archive.
//
// The flock decides. The text is for people, and for the holder itself: if locks exclude only processes of
// one host, a process of another host takes the lock, too, and replaces the text. A process that holds the
// lock exclusively writes the text, if the disk lets it, and empties the file at the end. One that shares the
// lock writes nothing. A file that is empty or not understood names nobody: earlier versions wrote nothing.
// One that is not understood is not written: it may be a hard link to somebody's file.
//
// `cp -al` and `rsync --link-dest` make a copy of a directory whose lock is the same file. If the holder is
// in another directory, the one that asks gets a lock file of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"

namespace cairn {

struct LockHolder {
  std::string host;
  int64_t pid = 0;
  std::string job;             // "Slurm job 16"; empty outside of a batch job
  std::string since;           // "2026-11-28 00:10:03 UTC"
  std::string word;            // random, different each time that the lock is taken
  std::string directory = {};  // of the lock file: its inode and birth time; earlier versions: empty

  static LockHolder ThisProcess();
  // "pid 71 on n3 (Slurm job 16) since 2026-11-28 00:10:03 UTC"
  std::string Text() const;
};

std::string EncodeLockHolder(const LockHolder& holder);
// nullopt if the text names nobody.
std::optional<LockHolder> DecodeLockHolder(std::string_view text);

class LockFile {
 public:
  // As FileSystem::OpenLock.
  static Result<LockFile> Open(FileSystem& fs, const std::string& path);
  Result<bool> TryLock(FileLock::How how);

  // Who holds the exclusive lock, in words: ": pid 71 on n3 since ..."; empty if the file does not say.
  std::string HeldBy() const;
  // OK if the file still names this process, which holds the exclusive lock. Errors: AlreadyExists if it
  // names another, or nobody; those of reading it.
  Status CheckHolder() const;

  const FileLock& file() const { return held_->file; }

 private:
  struct Held {
    Held(FileSystem& file_system, FileLock lock) : fs(file_system), file(std::move(lock)) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held();

    FileSystem& fs;
    FileLock file;
    bool alone = false;
    std::string word = {};  // that was written; empty: none
  };
  explicit LockFile(std::unique_ptr<Held> held) : held_(std::move(held)) {}

  std::unique_ptr<Held> held_;
};

}  // namespace cairn
