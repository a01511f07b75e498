// The files of a DeepSpeed checkpoint, sorted by their names.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

inline constexpr std::string_view kDeepSpeedStep = "global_step";  // before a step's number
inline constexpr std::string_view kDeepSpeedTracker = "latest";    // beside the steps: names the newest
inline constexpr const char* kUniversalTracker = "latest_universal";
inline constexpr const char* kUniversalFolder = "zero";  // of a universal checkpoint: a folder per parameter

struct DeepSpeedFiles {
  std::string directory;                                    // of the tag: "global_step1000"
  std::map<std::pair<int, int>, std::string> layers;        // of a pipeline, by (layer, tensor parallel rank)
  std::map<int, std::string> models;                        // by model parallel rank
  std::map<std::pair<int, int>, std::string> optimizers;    // by (model, data parallel rank)
  std::map<std::pair<int, int>, std::string> zero3_models;  // the same
  std::map<std::pair<size_t, size_t>, std::string> experts;  // by (mixture, expert)
  std::map<size_t, std::string> expert_optimizers;           // by expert parallel rank
};

// True if `path` is such a directory, or a run: `latest` names one, or is next to a global_step directory.
bool MatchesDeepSpeed(FileSystem& fs, const std::string& path);

// The number of steps in the model states of `directory`, if it is a tag, or a step of Lightning's, which has
// the tag "checkpoint" in it. nullopt for other directories, and for universal checkpoints.
std::optional<int64_t> DeepSpeedStepOf(FileSystem& fs, const std::string& directory);

// The directory beside the file `pointer` that its text names. Errors: Corrupt if that is not a plain name.
Result<std::string> NamedDirectory(FileSystem& fs, const std::string& path, std::string_view pointer);

// Errors: NotFound if `latest` names a directory that does not exist; NotSupported for a file of experts
// over tensor parallel ranks, or of the form before 2021.
Result<DeepSpeedFiles> FindDeepSpeedFiles(FileSystem& fs, const std::string& path);

// Checks that every rank in the model states has its files. `names`: the files of `directory`.
Status CheckDeepSpeedFiles(FileSystem& fs, const std::string& directory,
                           const std::vector<std::string>& names);

}  // namespace cairn
