// What a path means, told once for every verb.
//
// A place has the first of these kinds that fits; tests/cli/places.txt has what each verb does with it.
#pragma once

#include <string>
#include <vector>

#include "tools/seal/foreign_run.h"

namespace cairn {

enum class PlaceKind {
  kFile,           // of any format
  kStep,           // a step of Cairn: it has a manifest
  kIteration,      // of Megatron-Core, saved by cairn.megatron: a step of Cairn is in it
  kRun,            // committed steps of Cairn, whatever else it contains
  kUnfinishedRun,  // of Cairn, without a committed step; or a step of Cairn without a manifest
  kForeignStep,    // a step of another system, or a sealed directory
  kForeignRun,     // steps of another system; it may be a checkpoint, too: its tracker leads to one of them
  kTree,           // any other directory: a checkpoint, several of them, runs, or anything else
};

struct Place {
  PlaceKind kind = PlaceKind::kTree;
  std::string path;
  std::vector<ForeignStep> steps = {};  // ListRunSteps() of a kForeignRun

  // Steps of Cairn are at this place, or should be.
  bool native() const {
    return kind == PlaceKind::kStep || kind == PlaceKind::kRun || kind == PlaceKind::kUnfinishedRun ||
           kind == PlaceKind::kIteration;
  }
};

// The path of the step that RUN@STEP or RUN@TAG names; any other argument is returned unchanged. Errors:
// NotFound, listing the steps of the run, for a step that does not exist.
Result<std::string> StepPath(FileSystem& fs, const std::string& argument);

// What the argument means. Errors: those of StepPath; NotFound, PermissionDenied and so on for a path that
// cannot be listed.
Result<Place> Locate(FileSystem& fs, const std::string& argument);
// The same for a path, which is not taken for RUN@STEP.
Result<Place> PlaceAt(FileSystem& fs, const std::string& path);

// The steps of other systems that `cairn seal` takes: the place itself, or those of a run by number. Errors:
// those of Locate; NotSupported for a file, and for a step or a run of Cairn; InvalidArgument for a run of
// unknown steps, and for a directory of runs.
Result<std::vector<ForeignStep>> StepsToSeal(FileSystem& fs, const std::string& argument);

// Whether a format of another system recognises the place, or would if Cairn read it.
bool IsForeign(FileSystem& fs, const Place& place);

}  // namespace cairn
