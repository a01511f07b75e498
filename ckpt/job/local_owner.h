// The owner of a directory of local steps: DIR/RUN_ID/OWNER.
//
// The name of the directory is the run's identity; the file says which run directory had that identity when
// the first training wrote here, by inode and birth time (ckpt/run/run_identity.h), and on which host that
// was, for messages. A training uses only a local directory of its own run directory. It never reads, cleans
// or deletes one of another or an unknown run directory. It holds a lock on the file as long as it lives.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/io/file_lock.h"
#include "ckpt/io/file_system.h"
#include "ckpt/run/run_identity.h"

namespace cairn {

struct LocalOwner {
  std::string run;
  std::string run_dir;   // canonical path, for messages
  DirectoryFacts facts;  // of run_dir
  std::string host;

  // True for the same run directory, under any path and from any host.
  bool Is(const LocalOwner& other) const { return run == other.run && facts == other.facts; }
};

// The owner for a run directory. Errors: those of FactsOfDirectory.
Result<LocalOwner> OwnerOf(const std::string& run_dir, const std::string& run);

std::string EncodeLocalOwner(const LocalOwner& owner);
// Errors: Corrupt.
Result<LocalOwner> DecodeLocalOwner(const std::string& text);

inline constexpr std::string_view kLocalOwnerName = "OWNER";

// The owner of a directory of local steps. Errors: NotFound if the directory is new, without a step or a
// readable owner; IoError if it has steps.
Result<LocalOwner> ReadLocalOwner(FileSystem& fs, const std::string& directory);

// OK if `owner` may use the local directory: it does not exist, is its own, or has no steps and no owner.
// Changes nothing. Errors: IoError naming the owner, or if it is not a directory, or is another user's.
Status CheckLocalOwner(FileSystem& fs, const std::string& directory, const LocalOwner& owner);

// The local directory, used by one training.
class LocalClaim {
 public:
  // Locks OWNER, and writes it if the directory is new. Errors: AlreadyExists if another training uses the
  // directory; those of CheckLocalOwner and of the disk.
  static Result<LocalClaim> Take(FileSystem& fs, const std::string& directory, const LocalOwner& owner);

 private:
  explicit LocalClaim(FileLock file) : file_(std::move(file)) {}
  FileLock file_;
};

}  // namespace cairn
