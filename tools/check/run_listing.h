// Lists a run directory by names, sizes, times, manifests and catalogs: no tensor is read.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/job/local_owner.h"
#include "ckpt/model/tensor.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/step_hold.h"
#include "ckpt/run/step_tags.h"
#include "tools/check/node_step.h"
#include "tools/check/verify_record.h"
#include "tools/place/found_step.h"

namespace cairn {

struct StepListing : FoundStep {
  std::string state = {};      // committed, partly verified, verified, changed since verified, damaged,
                               // partial, superseded, deleting, of another run; of another system's: sealed,
                               // sealed with problems, changed since sealed, not sealed, one file, being
                               // written
  std::string system = {};     // another system's name; empty: Cairn, or unknown
  std::string trouble = {};    // why it is damaged, or what has changed
  std::string unhealthy = {};  // why (ckpt/run/health.h); empty if it is healthy or nothing is known
  std::optional<Manifest> manifest = {};  // of a step that opens
  std::vector<Check> checks = {};         // the checks of cairn verify, oldest first
  Standing standing = {};                 // its verdict today
  std::vector<Hold> holds = {};           // of virtual steps that use its shards
  std::map<Role, uint64_t> role_bytes = {};
  std::vector<std::string> tags = {};  // ckpt/run/step_tags.h
  std::optional<NodePart> part = {};   // of a node's step, whose state is "whole here" or "damaged here"
};

struct RunListing {
  std::string directory;
  std::vector<StepListing> steps;        // by step, then by name
  std::vector<StepTag> lost_tags = {};   // of steps that are gone
  std::optional<LocalOwner> owner = {};  // of a node's steps: their run
  std::string beside = {};               // CheckpointBesideSteps()
};

// The runs that the argument means: the one step or run, of Cairn or of another system; else the run
// directories in it. Errors: NotFound if it contains neither a run nor a step.
Result<std::vector<RunListing>> ListRuns(FileSystem& fs, const std::string& argument);

}  // namespace cairn
