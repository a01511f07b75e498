// The steps from which a job may resume, of its run directory and of its nodes, in one order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/base/byte_codec.h"
#include "ckpt/job/local_steps.h"
#include "ckpt/run/branch.h"
#include "ckpt/run/local_branch.h"

namespace cairn {

struct ResumeStep {
  int64_t step = -1;         // its number; -1: not known
  bool local = false;        // on the nodes
  bool drained = false;      // a local one that is in the run directory, too
  std::string directory;     // of one that is not local
  std::string unhealthy;     // why
  BranchedStep commit = {};  // of one whose manifest can be read

  std::string Name() const { return local ? fmt::format("local step {}", step) : directory; }
  // Between ranks, without the last two.
  void Encode(ByteWriter& out) const;
  static ResumeStep Decode(ByteReader& in);
};

struct ResumeSteps {
  std::vector<ResumeStep> steps;  // current ones, newest first; a local one before that of the same number
  std::optional<BranchedStep> newest;  // the step that was committed last
  std::vector<int64_t> given_up;       // local steps that neither it nor the note descends from
  int64_t unseen_branch = -1;          // for AfterLocalBranch()

  // What a user should know of them; empty if there are none.
  std::string GivenUp() const;
};

// `run`: the identity of the run directory; `local`: its local steps, surveyed, or null; `note`:
// ReadLocalNote(), if there is any. Errors: those of the directory.
Result<ResumeSteps> StepsToResume(FileSystem& fs, const std::string& run_dir, const std::string& run,
                                  const LocalSteps* local, const std::optional<BranchedStep>& note = {});

}  // namespace cairn
