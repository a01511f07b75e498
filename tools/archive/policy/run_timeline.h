// The runs of a policy: each directory on scratch that it means, with its steps there and those of the same
// run that the store still has.
//
// A run is its identity (run_identity.h), never its name: two directories of one name are two runs, a run
// that was removed and started again under its old name is another one, and a copied directory that nobody
// has written into yet is not a run of its own. Content alone decides whether a step is stored.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/archive/policy/policy.h"
#include "tools/archive/policy/selection.h"
#include "tools/archive/store/store.h"

namespace cairn {

// What is known of one step on scratch.
struct ScratchStep {
  std::string path;
  int64_t step = 0;
  std::string run;     // identity, as in its manifest; empty if that cannot be read
  std::string digest;  // of its manifest; empty if that cannot be read
  int64_t tokens = 0;
  int64_t saved = 0;
  int64_t accessed = 0;  // of the file that was accessed longest ago
  uint64_t bytes = 0;
  std::vector<uint64_t> entries;  // of its tar
  uint64_t weight_bytes = 0;      // as fp16
  uint64_t weight_at_most = 0;    // as a step of their own, all of its files
  bool healthy = true;
  std::vector<int64_t> branches;  // branch.h
  bool superseded = false;        // by the newest step of the run
  std::string trouble;            // why it cannot be read
};

// A run directory.
struct ScratchRun {
  std::string path;
  std::string name;     // that it has in the store
  std::string id;       // the identity that is this directory's own; empty if it has none
  std::string origin;   // of a copy that nobody has written into: the identity that it was copied with
  bool shared = false;  // other directories of the policy have the same: copies by older versions
  std::vector<ScratchStep> steps;  // superseded ones first, then ascending; not empty

  // The identity of what lies or lay under this number; empty if that cannot be told.
  std::string IdOf(const ScratchStep& step) const;
  int64_t NewestHealthy() const;  // that can be read; -1: none
};

struct PolicyRuns {
  std::vector<ScratchRun> runs;
  std::vector<std::string> failures;  // one line each: paths of the policy that are missing or wrong
  std::vector<std::string> notes;
};

// The line for a pattern without a match: a note where the store has something from there, else a failure.
void NoteNoMatch(const std::string& pattern, const std::vector<ArchiveMember>& members, PolicyRuns& runs);

PolicyRuns LookAtRuns(FileSystem& fs, const Policy& policy, const std::vector<ArchiveMember>& members);

// What `classes` ask for of each step of the run, on scratch and in the store.
//
// Only members count that were proven and are of the directory's own identity, or of a copy's origin
// and not beyond the copy's newest step. Superseded steps do not count, nor do those beyond the newest step
// on scratch that are older than it: the training went back and left them behind, and records of older
// versions do not say so. `all` lets all of these count too: what prune must not take.
std::map<int64_t, WantedForms> WantedSteps(const ScratchRun& run, const std::vector<ArchiveMember>& members,
                                           const std::vector<KeepClass>& classes, bool all);

// Whether the store holds a proven copy of this content.
bool HoldsContent(const std::vector<ArchiveMember>& members, const std::string& manifest_digest, Form form);
// The same of a step on scratch. Of one without its manifest there is no content to compare: then of this
// very run's step of that number.
bool HoldsStep(const std::vector<ArchiveMember>& members, const ScratchRun& run, const ScratchStep& step,
               Form form);

}  // namespace cairn
