// Whose local steps a directory holds: DIR/RUN_ID/OWNER.
//
// The name of the directory is the run's identity; the file says which run directory had that identity when
// the first training wrote here, by inode and birth time (ckpt/run/run_identity.h), and on which host that
// was, for messages. A training uses a local directory of its own run directory alone: what belongs to
// another one, or to an unknown one, is neither read nor cleaned nor deleted. It holds a lock on the file
// as long as it lives.
#pragma once

#include <string>

#include "ckpt/io/file_lock.h"
#include "ckpt/io/file_system.h"
#include "ckpt/run/run_identity.h"

namespace cairn {

struct LocalOwner {
  std::string run;
  std::string run_dir;   // canonical path, for messages
  DirectoryFacts facts;  // of run_dir
  std::string host;

  // Whether it is the same run directory, under whatever path and from whatever host.
  bool Is(const LocalOwner& other) const { return run == other.run && facts == other.facts; }
};

// The owner that a run directory is. Errors: those of FactsOfDirectory.
Result<LocalOwner> OwnerOf(const std::string& run_dir, const std::string& run);

std::string EncodeLocalOwner(const LocalOwner& owner);
// Errors: Corrupt where it is not such a text.
Result<LocalOwner> DecodeLocalOwner(const std::string& text);

// OK where `owner` may use the local directory: one that is not there, is its own, or holds no steps and has
// no owner. Changes nothing. Errors: IoError saying whose it is, or that it is not a directory.
Status CheckLocalOwner(FileSystem& fs, const std::string& directory, const LocalOwner& owner);

// The local directory, used by one training.
class LocalClaim {
 public:
  // Locks OWNER, and writes it where the directory is new. Errors: IoError where another training uses the
  // directory, those of CheckLocalOwner and of the disk.
  static Result<LocalClaim> Take(FileSystem& fs, const std::string& directory, const LocalOwner& owner);

 private:
  explicit LocalClaim(FileLock file) : file_(std::move(file)) {}
  FileLock file_;
};

}  // namespace cairn
