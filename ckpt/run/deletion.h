// The only place that removes what a user may still want: committed steps and archived trees.
//
// Every route comes here: retention, superseded and local steps, `archive run --delete-source`, policies. A
// caller brings a proof that what goes is not the only copy or not the best one, and DeleteStep() and
// DeleteTree() look again at the moment of deletion, in this order; the first that does not hold is a
// refusal, and then nothing has changed. docs/deletion.md has the same table for users.
//
//   kLink        the directory itself is a link, or something inside it is one
//   kMount       something is mounted on it or below it
//   kIdentity    another step or another content than the proof is about
//   kForeign     it holds a file that is not part of the checkpoint
//   kNewest      it is the newest healthy step of its run
//   kHeld        a virtual step elsewhere uses its shards
//   kAlive       a training writes into it or below it
//   kProof       what the proof rests on is no longer there
//
// What goes is renamed aside first, durably, so that a half-removed step is never taken for a whole one; then
// exactly the files that were looked at are unlinked, never what else a directory holds by then. DeleteStep()
// and DeleteTree() hold the DeletionLock of the run directory, or of the tree's parent.
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

// Why something may go. Only those who looked make one (HealthySuccessor, StoredCopy of the archive).
class DeletionProof {
 public:
  virtual ~DeletionProof() = default;
  // Looks again. Errors: what no longer holds.
  virtual Status Check(FileSystem& fs) const = 0;
  // For people: "stored as gpt-step-00000040.1a2b3c4d.tar".
  virtual std::string Text() const = 0;
};

// Held while something is checked and removed: a training's retention and an archive's do not interleave.
class DeletionLock {
 public:
  // Waits for another process for a few seconds. A simulated file system has no other process, so nothing is
  // locked there. Errors: AlreadyExists where another process holds it for longer; IoError.
  static Result<DeletionLock> Take(FileSystem& fs, const std::string& run_dir);

 private:
  explicit DeletionLock(std::optional<FileLock> file) : file_(std::move(file)) {}
  std::optional<FileLock> file_;
};

enum class DeletionRefusal { kLink, kMount, kIdentity, kForeign, kNewest, kHeld, kAlive, kProof };
std::string_view Name(DeletionRefusal refusal);  // "link", "identity", ...

// A line of the table, and the words for a person.
struct RefusedDeletion {
  DeletionRefusal refusal;
  Status status;
};

// Whether all shards of a step lie in its directory, or are spread over those of many nodes (local steps).
enum class Shards { kHere, kSpread };

struct StepDeletion {
  std::string run_dir;
  std::string name;   // in run_dir: a committed step's, or a superseded one's
  Digest manifest{};  // of its manifest's bytes, when the proof was made
  std::string nonce;  // of the name that it has while it is removed
  Shards shards = Shards::kHere;
  bool newest_too = false;  // a user insists: the newest healthy step may go
  std::string run;          // its identity; empty: the step may be of any run
};
// Entries of a step's directory that its manifest does not list: with one of them no step is deleted.
Result<std::vector<std::string>> UnlistedFiles(FileSystem& fs, const std::string& step_dir,
                                               const Manifest& manifest);

// Nothing where it may go.
std::optional<RefusedDeletion> WhyNotDelete(FileSystem& fs, const StepDeletion& deletion,
                                            const DeletionProof& proof);
// Errors: the status of WhyNotDelete(), with nothing changed; those of the disk.
Status DeleteStep(FileSystem& fs, const StepDeletion& deletion, const DeletionProof& proof);

// Behind the name of a tree while it is removed.
inline constexpr std::string_view kTreeDeletingSuffix = ".cairn-deleting";

// Of a tree of any files, that an archive stored.
struct TreeDeletion {
  std::string directory;                 // absolute
  std::vector<std::string> files;        // what it consists of, below it: files and links,
  std::vector<std::string> directories;  // and directories, each after its parent
  std::function<Status()> same;          // reads it all: whether that is still all that it holds
};
std::optional<RefusedDeletion> WhyNotDelete(FileSystem& fs, const TreeDeletion& deletion,
                                            const DeletionProof& proof);
Status DeleteTree(FileSystem& fs, const TreeDeletion& deletion, const DeletionProof& proof);

// The committed step that is the newest healthy one that opens; a superseded one only if there is no other.
// nullopt if there is none. Errors: those of the disk.
Result<std::optional<BranchedStep>> NewestHealthyStep(FileSystem& fs, const std::string& run_dir,
                                                      Shards shards = Shards::kHere);

// How a step that stays is looked at. Errors: why it does not count as good.
using StepLook = std::function<Status(const std::string& directory)>;

// A healthy step of the same run directory that stays; Check() looks at it again.
class HealthySuccessor final : public DeletionProof {
 public:
  // The newest healthy step, if it is `at_least` or was committed later. Errors: NotFound.
  static Result<HealthySuccessor> Find(FileSystem& fs, const std::string& run_dir,
                                       const BranchedStep& at_least, Shards shards = Shards::kHere);
  // The newest healthy step that `look` finds good, for the step `name` to go: newer than that one, or any
  // other if that one is unhealthy. Errors: InvalidArgument if `name` is the newest healthy step; what
  // `look` says of the newest one if that is not good and no other one is newer than `name`; Corrupt if no
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

// Ends what a killed DeleteStep() or DeleteTree() began in `aside`, its directory's new name: only files of
// the names that Cairn gives go. Errors: kForeign, kLink.
Status FinishDeletion(FileSystem& fs, const std::string& aside);

}  // namespace cairn
