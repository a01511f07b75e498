// The sources of an archive: native steps, other systems' checkpoints, or any directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/archive/tar/record.h"
#include "tools/place/found_step.h"

namespace cairn {

class StepReader;
struct Place;

// The sources that the arguments name: a step (or RUN@STEP); all committed steps of a run directory; the
// steps of another system's run; or the directory as it is. All but steps of Cairn are taken as trees of
// files. Errors: NotFound naming the argument.
Result<std::vector<FoundStep>> ExpandSources(FileSystem& fs, const std::vector<std::string>& arguments,
                                             std::vector<std::string>& notes);

// Notes that a checkpoint beside a run's steps is not stored, if there is one.
void NoteCheckpointBeside(FileSystem& fs, const Place& place, std::vector<std::string>& notes);

// Why a step of another system is passed over: its writer has not finished it. Empty for any other source.
std::string WhyPassedOver(FileSystem& fs, const FoundStep& source);

// The record that `step` would get, without the size of the tar and the digests of the files.
ArchiveRecord DescribeSource(const StepReader& step);

// The name, step and place in the store that a tree of this path gets; nothing else about its content.
ArchiveRecord NameTree(FileSystem& fs, const std::string& directory);

// Errors: Corrupt if the manifest in `step_dir` does not have this digest (hex).
Status CheckManifestUnchanged(FileSystem& fs, const std::string& step_dir, std::string_view digest);

}  // namespace cairn
