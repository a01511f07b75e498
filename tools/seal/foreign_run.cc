#include "tools/seal/foreign_run.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "tools/archive/tar/record.h"
#include "tools/seal/seal_record.h"

namespace cairn {
namespace {

constexpr std::string_view kDeepSpeedTracker = "latest";
constexpr std::string_view kMegatronTracker = "latest_checkpointed_iteration.txt";

std::string LastNameOf(const std::string& path) {
  return std::filesystem::path(CanonicalPath(path)).filename().string();
}

bool IsNativeName(std::string_view name) { return ParseStepDirName(name) || ParseMarkedDirName(name); }

// A directory of steps can be one itself: transformers puts DeepSpeed's global_step40 into checkpoint-40.
bool HasOwnState(FileSystem& fs, const std::string& directory) {
  for (const std::string_view name : {".metadata", "trainer_state.json"})
    if (fs.Stat(JoinPath(directory, name)).ok()) return true;
  return false;
}

int64_t NewestTime(const std::vector<StepFile>& files) {
  int64_t newest = 0;
  for (const StepFile& file : files) newest = std::max(newest, file.modified_unix_seconds);
  return newest;
}

// The last word of the tracker that the step's system keeps beside its steps.
std::string WhyTrackerSaysNo(FileSystem& fs, const ForeignStep& step, const std::vector<StepFile>& files,
                             bool strict) {
  const std::string name = LastNameOf(step.path);
  const bool megatron = name.starts_with("iter_");
  if (!step.step || (!megatron && !name.starts_with("global_step"))) return {};
  const std::string run = std::filesystem::path(CanonicalPath(step.path)).parent_path().string();
  // Inside of transformers' checkpoint-40 the Trainer's own file counts.
  const std::string tracker = JoinPath(run, megatron ? kMegatronTracker : kDeepSpeedTracker);
  const auto text = ReadSmallFile(fs, tracker, 4096);
  if (!text.ok()) return strict ? fmt::format("{} is not there yet", tracker) : "";
  const std::string said = text->substr(0, text->find_first_of(" \r\n"));
  const auto done = megatron ? ParseStepNumber(said) : ForeignStepOf(said);
  if (said == name || said == "release" || (done && *done >= *step.step)) return {};
  // After a run went back to an older step, what was written before that is behind the tracker for good.
  const auto info = fs.Stat(tracker);
  if (info.ok() && info->modified_unix_seconds > NewestTime(files)) return {};
  return fmt::format("{} still names {}", tracker, said.empty() ? "nothing" : said);
}

// The file that is written last into the step, where its system has one.
std::string WhyFilesSayNo(const ForeignStep& step, const std::vector<StepFile>& files) {
  std::set<std::string> folders, with_metadata;
  bool trainer_state = false, trainer = LastNameOf(step.path).starts_with("checkpoint-");
  for (const StepFile& file : files) {
    const std::string name = file.name.substr(FolderOf(file.name).size());
    if (name.ends_with(".distcp")) folders.insert(FolderOf(file.name));
    if (name == ".metadata") with_metadata.insert(FolderOf(file.name));
    if (name == "trainer_state.json") trainer_state = true;
    if (name.starts_with("random_states_")) trainer = false;  // accelerate's own, which has no such file
  }
  for (const std::string& folder : folders)
    if (!with_metadata.contains(folder))
      return fmt::format("{} is not there yet", JoinPath(step.path, folder + ".metadata"));
  if (trainer && !trainer_state)
    return fmt::format("{} is not there yet", JoinPath(step.path, "trainer_state.json"));
  return files.empty() ? fmt::format("{} has no files yet", step.path) : "";
}

}  // namespace

std::vector<ForeignStep> ListRunSteps(FileSystem& fs, const std::string& directory) {
  std::vector<ForeignStep> steps;
  const auto names = fs.List(directory);
  if (!names.ok()) return steps;
  for (const std::string& name : *names) {
    const auto step = IsNativeName(name) ? std::nullopt : ForeignStepOf(name);
    if (!step) continue;
    const std::string path = JoinPath(directory, name);
    const auto info = fs.Stat(path);
    if (info.ok() && info->is_directory() && !fs.Stat(JoinPath(path, kManifestName)).ok())
      steps.push_back({path, step});
  }
  std::ranges::stable_sort(steps, {}, [](const ForeignStep& step) { return *step.step; });
  return steps;
}

bool IsForeignStep(FileSystem& fs, const std::string& directory) {
  return HasSeal(fs, directory) || ForeignStepOf(LastNameOf(directory)) || HasOwnState(fs, directory) ||
         ListRunSteps(fs, directory).empty();
}

Result<std::vector<ForeignStep>> ListForeignSteps(FileSystem& fs, const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(directory));
  if (!info.is_directory()) return NotSupported("{} is a file; give the directory that it is in", directory);
  if (fs.Stat(JoinPath(directory, kManifestName)).ok() || IsNativeName(LastNameOf(directory)))
    return NotSupported("{}: a step of Cairn is committed without a seal; cairn verify checks it", directory);
  if (IsForeignStep(fs, directory)) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
    if (std::ranges::any_of(names, IsNativeName))
      return NotSupported("{}: the steps of a run of Cairn are committed without seals; cairn ls lists them",
                          directory);
    return std::vector{ForeignStep{directory, ForeignStepOf(LastNameOf(directory))}};
  }
  return ListRunSteps(fs, directory);
}

std::string WhyUnfinished(FileSystem& fs, const ForeignStep& step, const std::vector<StepFile>& files,
                          bool strict, int64_t now, int64_t quiet_seconds) {
  std::string why = WhyFilesSayNo(step, files);
  if (why.empty()) why = WhyTrackerSaysNo(fs, step, files, strict);
  if (!why.empty() || quiet_seconds <= 0) return why;
  for (const StepFile& file : files)
    if (now - file.modified_unix_seconds < quiet_seconds)
      return fmt::format("{} was written less than {} s ago", JoinPath(step.path, file.name), quiet_seconds);
  return {};
}

}  // namespace cairn
