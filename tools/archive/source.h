// The steps that an archive takes its copies from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/step_reader.h"
#include "tools/archive/record.h"

namespace cairn {

// The step directories that the arguments mean: a step itself, or all committed steps of a run directory.
// Errors: NotFound naming the argument.
Result<std::vector<std::string>> ExpandSources(FileSystem& fs, const std::vector<std::string>& arguments);

// The record that `step` would get, without the size of the tar and the digests of the files.
ArchiveRecord DescribeSource(const StepReader& step);

// Errors: Corrupt where the manifest in `step_dir` is another than the one of this digest (hex).
Status CheckManifestUnchanged(FileSystem& fs, const std::string& step_dir, std::string_view digest);

// Absolute, without links and without a slash at its end.
std::string CanonicalPath(const std::string& path);

}  // namespace cairn
