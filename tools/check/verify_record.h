// The results of the checks of a step, in the run directory: RUN/verified/step-00000100.json.
//
// It saves `ls` and `archive` from reading every step first. A record counts for the step whose manifest it
// names by digest; another step of the same name has none. Nothing depends on it: it may be missing, or be
// deleted at any time. verify_standing.h interprets it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/model/manifest.h"
#include "tools/check/verify_standing.h"

namespace cairn {

// The step's files as they look now, in the manifest's order; missing files are left out. Sees real files
// only.
std::vector<CheckedFile> StatFiles(FileSystem& fs, const std::string& step_directory,
                                   const Manifest& manifest);

// Adds to the step's record by the rules of AddCheck, and returns the new record. Processes that do so at the
// same time wait for each other. Errors: those of the disk; NotSupported: a later version of Cairn wrote it,
// and it is not changed.
Result<std::vector<Check>> AddToVerifyRecord(FileSystem& fs, const std::string& step_directory,
                                             const Manifest& manifest, const std::vector<Check>& checks);

// The same for checks that have just been made; before them the files looked like `files`.
Result<std::vector<Check>> RecordChecks(FileSystem& fs, const std::string& step_directory,
                                        const Manifest& manifest, const std::vector<CheckedFile>& files,
                                        std::vector<Check> checks);

// Oldest first; empty if there is no readable record of exactly this step.
std::vector<Check> ReadVerifyRecord(FileSystem& fs, const std::string& step_directory,
                                    const Manifest& manifest);

// The facts of a check, without its files and ranges.
nlohmann::ordered_json ToJson(const Check& check);

}  // namespace cairn
