// The only code that removes data that a user may still want: committed steps and archived trees.
//
// Every route comes here: retention, superseded and local steps, `archive run --delete-source`, policies. A
// caller brings a proof that the step or tree is not the only copy or not the best one. DeleteStep() and
// DeleteTree() check again at the moment of deletion, in this order; the first check that fails is a refusal,
// and then nothing has changed. docs/deletion.md has the same table for users.
//
//   link      the directory itself is a link, or something inside it is one
//   mount     something is mounted on it or below it
//   identity  not the step or the content that the proof is about
//   foreign   it holds a file that is not part of the checkpoint
//   tagged    a person gave it a name (step_tags.h)
//   newest    it is the newest healthy step of its run
//   held      a virtual step elsewhere uses its shards
//   alive     a training writes into it or below it
//   proof     the copy or step that the proof names has gone
//
// The directory is renamed aside first, durably, so that a half-removed step is never mistaken for a whole
// one. Then exactly the files that were checked are unlinked, never other files that have appeared since. A
// renamed step already has its mark (dir_mark.h): CleanLeftovers() finishes a deletion that was killed.
// DeleteStep() and DeleteTree() hold the DeletionLock of the run directory, or of the tree's parent.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/io/file_lock.h"
#include "ckpt/io/file_system.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/branch.h"

namespace cairn {

// Why something may be deleted. Made only by code that has checked it (HealthySuccessor, StoredCopy of the
// archive).
class DeletionProof {
 public:
  virtual ~DeletionProof() = default;
  // Checks again. Errors: why it no longer holds.
  virtual Status Check(FileSystem& fs) const = 0;
  // For people: "stored as gpt-step-00000040.1a2b3c4d.tar".
  virtual std::string Text() const = 0;
};

// Held while something is checked and removed, so that a training's retention and an archive's do not
// interleave.
class DeletionLock {
 public:
  // Waits for another process for a few seconds. Nothing is locked on a simulated file system, which no other
  // process uses. Errors: AlreadyExists if another process holds it for longer; IoError.
  static Result<DeletionLock> Take(FileSystem& fs, const std::string& run_dir);

 private:
  explicit DeletionLock(FileLock file) : file_(std::move(file)) {}
  FileLock file_;
};

// Whether all shards of a step are in its directory, or in those of many nodes (local steps).
enum class Shards { kHere, kSpread };

struct StepDeletion {
  std::string run_dir;
  std::string name;   // in run_dir: a committed step's, or a superseded one's
  Digest manifest{};  // of its manifest's bytes, when the proof was made
  std::string nonce;  // in its name while it is removed
  Shards shards = Shards::kHere;
  bool newest_too = false;  // the user insists: the newest healthy step may go
  std::string run;          // its identity; empty: the step may be of any run
};
// Entries of a step's directory that its manifest does not list. A step with one of them is never deleted.
Result<std::vector<std::string>> UnlistedFiles(FileSystem& fs, const std::string& step_dir,
                                               const Manifest& manifest);

// Errors: a refusal, with nothing changed; those of the disk.
Status DeleteStep(FileSystem& fs, const StepDeletion& deletion, const DeletionProof& proof);

// Suffix of a tree's name while it is removed.
inline constexpr std::string_view kTreeDeletingSuffix = ".cairn-deleting";

// A tree of any files that an archive stored.
struct TreeDeletion {
  std::string directory;                 // absolute
  std::vector<std::string> files;        // paths below it: files and links,
  std::vector<std::string> directories;  // and directories, each after its parent
  std::function<Status()> same;          // reads everything: OK if the tree is still what was stored
};
Status DeleteTree(FileSystem& fs, const TreeDeletion& deletion, const DeletionProof& proof);

// The committed step that is the newest healthy one that opens; a superseded one only if there is no other.
// nullopt if there is none. Errors: those of the disk.
Result<std::optional<BranchedStep>> NewestHealthyStep(FileSystem& fs, const std::string& run_dir,
                                                      Shards shards = Shards::kHere);

// Checks a step that stays. Errors: why it does not count as good.
using StepLook = std::function<Status(const std::string& directory)>;

// A healthy step of the same run directory that stays. Check() checks it again.
class HealthySuccessor final : public DeletionProof {
 public:
  // The newest healthy step, if it is `at_least` or was committed later. Errors: NotFound.
  static Result<HealthySuccessor> Find(FileSystem& fs, const std::string& run_dir,
                                       const BranchedStep& at_least, Shards shards = Shards::kHere);
  // The newest healthy step that `look` finds good, for the step `name` to go: newer than that one, or any
  // other if that one is unhealthy. Errors: InvalidArgument if `name` is the newest healthy step; the error
  // of `look` for the newest one, if that is not good and no other one is newer than `name`; Corrupt if no
  // other step is healthy.
  static Result<HealthySuccessor> For(FileSystem& fs, const std::string& run_dir, const std::string& name,
                                      StepLook look);
  Status Check(FileSystem& fs) const override;
  std::string Text() const override;

 private:
  HealthySuccessor(std::string directory, StepLook look)
      : directory_(std::move(directory)), look_(std::move(look)) {}
  std::string directory_;
  StepLook look_;
};

}  // namespace cairn
