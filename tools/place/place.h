// What a path means, for every verb.
//
// A place has the first of these kinds that fits; tests/cli/places.txt has what each verb does with it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/place/found_step.h"

namespace cairn {

enum class PlaceKind {
  kMember,         // of a store: an archived step or tree
  kFile,           // of any format
  kStep,           // a step of Cairn: it has a manifest
  kIteration,      // of Megatron-Core, saved by cairn.megatron: a step of Cairn is in it
  kNodeStep,       // of Cairn, the part of it that one node keeps (ckpt/job/local_owner.h)
  kNodeRun,        // such steps
  kRun,            // committed steps of Cairn, whatever else it contains
  kUnfinishedRun,  // of Cairn, without a committed step; or a step of Cairn without a manifest
  kForeignStep,    // a step of another system, or a sealed directory
  kForeignRun,     // steps of another system; it may be a checkpoint, too: its tracker leads to one of them
  kFileRun,        // steps of another system that are a file each (TrainerLayout::files)
  kTree,           // any other directory: a checkpoint, several of them, runs, or anything else
};

struct Place {
  PlaceKind kind = PlaceKind::kTree;
  std::string path = {};    // of a member: its store
  std::string member = {};  // RUN@STEP, or any other selector of FindMember()
  // Where the step of Cairn or the run with it is: the place itself, or the iteration of cairn.megatron that
  // the tracker of a run names. Empty of all others.
  std::string native_path = {};
  bool sealed = false;  // the directory has a seal, sound or not
  // The committed steps of a run, also of a node's, or an iteration of Cairn, the steps of a kForeignRun
  // (ListForeignSteps) or a kFileRun, else the directory itself.
  std::vector<FoundStep> steps = {};

  // As a user names it.
  std::string name() const { return member.empty() ? path : path + ":" + member; }
  // Steps of Cairn are at this place, or should be.
  bool native() const { return native_path == path; }
  // Committed steps of Cairn are in it.
  bool native_run() const { return kind == PlaceKind::kRun || kind == PlaceKind::kIteration; }
  // Steps of another system, in directories or as files.
  bool foreign_run() const { return kind == PlaceKind::kForeignRun || kind == PlaceKind::kFileRun; }
  // Other nodes have the rest of it.
  bool of_node() const { return kind == PlaceKind::kNodeStep || kind == PlaceKind::kNodeRun; }
};

// "STORE:SELECTOR" in two; the selector is empty of any argument that is a path that exists, or RUN@STEP.
std::pair<std::string, std::string> SplitMemberName(FileSystem& fs, const std::string& argument);

// The path of the step that RUN@STEP or RUN@TAG names; any other argument is returned unchanged. Errors:
// NotFound, listing the steps of the run, for a step that does not exist.
Result<std::string> StepPath(FileSystem& fs, const std::string& argument);

// What the argument means. Errors: those of StepPath; NotFound, PermissionDenied and so on for a path that
// cannot be listed. Whether a store has the member is not known yet.
Result<Place> Locate(FileSystem& fs, const std::string& argument);
// The same for a path, which is not taken for RUN@STEP.
Result<Place> PlaceAt(FileSystem& fs, const std::string& path);

// `directory` as a step of another system, with the number that NamedStepOf() finds.
FoundStep FoundStepAt(FileSystem& fs, const std::string& directory);

// The directories in `directory` that are steps of other systems, by their names (global_step40,
// iter_0000040, checkpoint-40, step-40) or their files, by number. Steps that the training abandoned when it
// went back (IsLeftBehind) come first. None if it cannot be listed.
std::vector<FoundStep> ListForeignSteps(FileSystem& fs, const std::string& directory);

// The steps of other systems that `cairn seal` takes: the place itself, or those of a run by number. Errors:
// those of Locate; NotSupported for a file, a member, and for a step or a run of Cairn; InvalidArgument for a
// run of unknown steps, and for a directory of runs.
Result<std::vector<FoundStep>> StepsToSeal(FileSystem& fs, const std::string& argument);

// "checkpoint-#" of "checkpoint-900": names of one run's steps are equal. What follows "step=" does not
// count.
std::string KindOfName(std::string_view name);

// A sentence about a checkpoint that lies beside the steps of a run: a training of transformers leaves its
// model there when it ends. Returns an empty text if only steps are in the run.
std::string CheckpointBesideSteps(FileSystem& fs, const Place& place);

// The runs in a directory, of any system.
std::vector<Place> RunsIn(FileSystem& fs, const std::string& directory);
// Errors: InvalidArgument, naming them, for a verb that takes one checkpoint, or the steps of one run.
Status RefuseRunsIn(FileSystem& fs, const std::string& directory);

// Directories in a place that hold a checkpoint each and have names of one kind, if Cairn does not know them
// as steps: it is a run of a program that Cairn does not know.
std::vector<std::string> UnknownSteps(FileSystem& fs, const Place& place);

}  // namespace cairn
