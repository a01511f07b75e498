// The proof that an archive may remove a source from scratch, of whichever system it is.
//
// It follows from what the writers left, never from a name or place alone:
//
//   a step of Cairn      another good step of its run (verified_successor.h), unless the user insists
//   another system's     it is finished, its run's tracker does not name it, and a later step of the run is
//                        finished, was found whole, and has every kind of state that it has
//   any other tree       the user insists, and no step of another system is in it or around it
//
// A step that is being written, or has a tag (step_tags.h), stays in any case.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/run/deletion.h"
#include "tools/place/found_step.h"
#include "tools/seal/seal_check.h"

namespace cairn {

// What the user insists on.
struct Insistence {
  bool newest = false;  // the newest step of a run goes, too
  bool tree = false;    // so does a directory that may hold a run, as far as Cairn knows
};

class RemovalProofs {
 public:
  // `depth`: kLook finds out what would be removed, and reads no tensor.
  RemovalProofs(FileSystem& fs, Insistence insists, bool show_progress, SealDepth depth = SealDepth::kAll)
      : fs_(fs), insists_(insists), show_progress_(show_progress), depth_(depth) {}

  // For the step or tree at `source`. A step that must stay is read once, however many others go. Errors: why
  // it stays. InvalidArgument: it is the newest of its run, has a tag, is being written, or is a tree of
  // unknown kind; Corrupt, NotFound: no later step is good.
  Result<std::shared_ptr<const DeletionProof>> For(const std::string& source);

 private:
  Result<std::shared_ptr<const DeletionProof>> ForForeign(const FoundStep& going);
  Status CheckWhole(const FoundStep& step);
  Status ReadWhole(const FoundStep& step, const std::vector<StepFile>& files) const;

  FileSystem& fs_;
  const Insistence insists_;
  const bool show_progress_;
  const SealDepth depth_;
  std::map<std::string, std::pair<std::vector<StepFile>, Status>> looked_at_;  // by the path of a step
};

}  // namespace cairn
