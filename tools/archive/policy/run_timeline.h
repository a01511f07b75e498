// The runs of a policy: each directory on scratch that it names, with its steps on scratch and those of the
// same run in the store.
//
// A run is known by its identity (run_identity.h), never by its name: two directories of one name are two
// runs, a run that was removed and started again under its old name is a new run, and a copied directory to
// which nothing was written yet is not a separate run. Only content decides whether a step is stored.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ckpt/run/step_tags.h"
#include "tools/archive/policy/policy.h"
#include "tools/archive/policy/selection.h"
#include "tools/archive/store/store.h"
#include "tools/place/place.h"

namespace cairn {

// One step of Cairn on scratch.
struct ScratchStep : FoundStep {
  std::string run = {};     // identity, as in its manifest; empty if that cannot be read
  std::string digest = {};  // of its manifest; empty if that cannot be read
  int64_t tokens = 0;
  int64_t saved = 0;
  std::vector<uint64_t> entries = {};  // of its tar
  uint64_t weight_bytes = 0;           // as fp16
  uint64_t weight_at_most = 0;         // as a step of their own, all of its files
  bool healthy = true;
  BranchedStep commit = {};
  bool superseded = false;   // by the newest step of the run
  std::string trouble = {};  // why it cannot be read
};

// A run directory.
struct ScratchRun {
  std::string path;
  std::string name;         // that it has in the store
  std::string id = {};      // the identity that is this directory's own; empty if it has none
  std::string origin = {};  // of a copy to which nothing was written: the identity that it was copied with
  bool shared = false;      // other directories of the policy have the same: copies by older versions
  std::vector<StepTag> tags = {};
  std::vector<ScratchStep> steps = {};  // superseded ones first, then ascending; not empty

  // The identity of the run that saved this step; empty if it is unknown.
  std::string IdOf(const ScratchStep& step) const;
  int64_t NewestHealthy() const;  // that can be read; -1: none
};

struct PolicyRuns {
  std::vector<ScratchRun> runs;
  std::vector<Place> foreign;         // runs of other systems
  std::vector<std::string> failures;  // one line each: paths of the policy that are missing or wrong
  std::vector<std::string> notes;
};

// The directories that match the patterns, each once. A pattern without a match becomes a note if the store
// has something from it, and a failure otherwise.
std::vector<std::string> MatchPatterns(const std::vector<std::string>& patterns,
                                       const std::vector<ArchiveMember>& members,
                                       std::vector<std::string>& failures, std::vector<std::string>& notes);

PolicyRuns LookAtRuns(FileSystem& fs, const Policy& policy, const std::vector<ArchiveMember>& members);

// The forms that `classes` keep of each step of the run, on scratch and in the store.
//
// Members count only if they were proven and have the directory's own identity, or the identity of a copy's
// origin and no later step than the copy. Superseded steps do not count. Neither do steps beyond the newest
// step on scratch that are older than it: the training went back and left them behind, and records of older
// versions do not say so. With `all` these count, too, because prune must not remove them.
std::map<int64_t, WantedForms> WantedSteps(const ScratchRun& run, const std::vector<ArchiveMember>& members,
                                           const std::vector<KeepClass>& classes, bool all);

// Whether the store holds a proven copy of this content.
bool HoldsContent(const std::vector<ArchiveMember>& members, const std::string& manifest_digest, Form form);
// The same for a step on scratch. A step without its manifest has no content to compare; then the step of
// that number of the same run counts.
bool HoldsStep(const std::vector<ArchiveMember>& members, const ScratchRun& run, const ScratchStep& step,
               Form form);

}  // namespace cairn
