// Checks that a checkpoint has every file that its format requires. No tensor is read, and no pickle is run.
//
// Every file by itself: a zip of torch.save ends with its directory, JSON with its bracket, a safetensors
// file is as long as its header says. Every folder by what each format says of its own files (System::sets,
// System::check_files). Then the checkpoint as a whole is opened as the other verbs open it, which finds
// holes in fused, cut and flattened tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/step/verify.h"
#include "convert/foreign/open_options.h"
#include "convert/torch/zip_container.h"
#include "tools/place/step_files.h"

namespace cairn {

struct StepParts {
  std::string system;                                     // the format that recognises the files; empty: none
  std::vector<std::string> whole;                         // parts that are complete; one line each
  std::vector<std::string> untold;                        // checks that were not possible, and why
  std::vector<std::string> notes;                         // what is missing, though the files are good
  std::vector<Problem> problems;                          // files that are missing, truncated or inconsistent
  std::map<std::string, std::vector<ZipRecord>> records;  // of torch.save's zips, by file
};

// The name of the format that recognises `directory`, or the checkpoints in it; empty: none does, or several.
std::string SystemOf(FileSystem& fs, const std::string& directory);

// Checks the files of `directory` as they were listed, and each checkpoint in it. A file that cannot be read
// is a problem.
StepParts CheckStepParts(FileSystem& fs, const std::string& directory, const std::vector<StepFile>& files,
                         const OpenOptions& options);

// The same, but no checkpoint is opened as a whole.
StepParts CheckStepFiles(FileSystem& fs, const std::string& directory, const std::vector<StepFile>& files);

}  // namespace cairn
