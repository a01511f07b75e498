// What the checks of a step found, beside the steps: RUN/verified/step-00000100.json.
//
// For whoever lists or archives steps and should not have to read them first. A record counts for the step
// whose manifest it names by digest; another step under the same name has none. Nothing depends on it: it
// may be missing, or be deleted at any time. verify_standing.h says what it means.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/model/manifest.h"
#include "tools/check/verify_standing.h"

namespace cairn {

// The step's files as they look now, in the manifest's order; those that are not there are left out. Of real
// files only.
std::vector<CheckedFile> LookAtFiles(const std::string& step_directory, const Manifest& manifest);

// Adds to the step's record by the rules of AddCheck, and returns what it says then. Processes that do so at
// once wait for each other. Errors: those of the disk; NotSupported: a later version of Cairn wrote it, and
// it stays as it is.
Result<std::vector<Check>> AddToVerifyRecord(FileSystem& fs, const std::string& step_directory,
                                             const Manifest& manifest, const std::vector<Check>& checks);

// The same of checks that were just made, of files that looked like `files` before.
Result<std::vector<Check>> RecordChecks(FileSystem& fs, const std::string& step_directory,
                                        const Manifest& manifest, const std::vector<CheckedFile>& files,
                                        std::vector<Check> checks);

// Oldest first; empty where there is no record, none that can be read, or another step's.
std::vector<Check> ReadVerifyRecord(FileSystem& fs, const std::string& step_directory,
                                    const Manifest& manifest);

}  // namespace cairn
