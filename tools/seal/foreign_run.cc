#include "tools/seal/foreign_run.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/glob.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/model/layout.h"
#include "convert/formats/systems.h"
#include "tools/seal/seal_record.h"

namespace cairn {
namespace {

std::string LastNameOf(const std::string& path) {
  return std::filesystem::path(CanonicalPath(path)).filename().string();
}

constexpr size_t kMostUnnamed = 1024;  // entries of a run in which steps are looked for by their files

bool IsLink(FileSystem& fs, const std::string& path) {
  const auto info = fs.LinkStat(path);
  return info.ok() && info->kind == FileKind::kLink;
}

bool IsNativeName(std::string_view name) { return ParseStepDirName(name) || ParseMarkedDirName(name); }

// A directory of steps can be one itself: transformers puts DeepSpeed's global_step40 into checkpoint-40.
bool HasOwnState(FileSystem& fs, const std::string& directory) {
  return std::ranges::any_of(TrainerLayouts(), [&](const TrainerLayout& layout) {
    return !layout.last.empty() && fs.Stat(JoinPath(directory, layout.last)).ok();
  });
}

int64_t NewestTime(const std::vector<StepFile>& files) {
  int64_t newest = 0;
  for (const StepFile& file : files) newest = std::max(newest, file.modified_unix_seconds);
  return newest;
}

// The contents of a system's tracker file.
struct Tracker {
  std::string path;
  std::optional<std::string> text;  // its first word; nullopt: the file does not exist
  std::optional<int64_t> step;      // that it names
  int64_t written_unix_seconds = 0;
};

// nullopt if the step's system has no tracker. Inside transformers' checkpoint-40 the Trainer's own file
// counts. Lightning's steps have a tracker each, which is only about that step.
std::optional<Tracker> TrackerOf(FileSystem& fs, const ForeignStep& step) {
  const auto named = ParseForeignStep(LastNameOf(step.path));
  const auto found = named ? named : StepAt(fs, step.path);
  if (!found || !found->layout || found->layout->tracker.empty()) return std::nullopt;
  if (!named && !FindSystem(found->layout->format)->step_of)
    return std::nullopt;  // NeMo writes none beside its steps
  const std::string run = std::filesystem::path(CanonicalPath(step.path)).parent_path().string();
  const std::string inside = JoinPath(step.path, found->layout->tracker);
  const bool alone = !named && fs.Stat(inside).ok();
  Tracker tracker{.path = alone ? inside : JoinPath(run, found->layout->tracker)};
  const auto text = ReadSmallFile(fs, tracker.path, 4096);
  if (!text.ok()) return tracker;
  tracker.text = text->substr(0, text->find_first_of(" \r\n"));
  if (const auto info = fs.Stat(tracker.path); info.ok())
    tracker.written_unix_seconds = info->modified_unix_seconds;
  if (alone || tracker.text->empty()) {
    tracker.step = tracker.text->empty() ? std::nullopt : step.step;
    return tracker;
  }
  tracker.step = ForeignStepOf(fs, JoinPath(run, *tracker.text));
  if (!tracker.step) tracker.step = ParseNumber<int64_t>(*tracker.text, 0);  // Megatron's has only the number
  return tracker;
}

// True if the training went back before the step: the tracker names an earlier one and was written later.
bool LeftBehind(const Tracker& tracker, const ForeignStep& step, const std::vector<StepFile>& files) {
  return tracker.step && *tracker.step < *step.step && tracker.written_unix_seconds > NewestTime(files);
}

// Empty if the tracker names the step or a later one, or does not concern it.
std::string WhyTrackerSaysNo(FileSystem& fs, const ForeignStep& step, const std::vector<StepFile>& files,
                             bool strict) {
  const std::optional<Tracker> tracker = TrackerOf(fs, step);
  if (!tracker) return {};
  if (!tracker->text)
    return strict
               ? fmt::format("{} does not exist yet; if it was lost: cairn seal {}", tracker->path, step.path)
               : "";
  if (*tracker->text == LastNameOf(step.path) || *tracker->text == "release" ||
      (tracker->step && *tracker->step >= *step.step) || tracker->written_unix_seconds > NewestTime(files))
    return {};
  return fmt::format("{} still names {}", tracker->path, tracker->text->empty() ? "nothing" : *tracker->text);
}

// The folders of a step that wait for the file that its system writes last into them.
std::set<std::string> WaitingFolders(const TrainerLayout& layout, bool named,
                                     const std::vector<StepFile>& files) {
  std::set<std::string> waiting;
  if (named && layout.last_after.empty()) waiting.insert("");
  for (const StepFile& file : files) {
    const std::string folder = FolderOf(file.name), name = file.name.substr(folder.size());
    if (!layout.last_after.empty() && FitsGlob(name, layout.last_after)) waiting.insert(folder);
    if (FitsAnyGlob(name, layout.without_last)) return {};
  }
  for (const StepFile& file : files)
    if (const std::string folder = FolderOf(file.name); file.name.substr(folder.size()) == layout.last)
      waiting.erase(folder);
  return waiting;
}

// Empty if the files that each system writes last exist.
std::string WhyFilesSayNo(const ForeignStep& step, const std::vector<StepFile>& files) {
  const auto named = ParseForeignStep(LastNameOf(step.path));
  for (const TrainerLayout& layout : TrainerLayouts()) {
    if (layout.last.empty()) continue;
    const auto waiting = WaitingFolders(layout, named && named->layout == &layout, files);
    if (!waiting.empty())
      return fmt::format("{} does not exist yet", JoinPath(step.path, *waiting.begin() + layout.last));
  }
  return files.empty() ? fmt::format("{} has no files yet", step.path) : "";
}

}  // namespace

std::optional<int64_t> ForeignStepOf(FileSystem& fs, const std::string& directory) {
  const auto found = StepAt(fs, directory);
  return found ? std::optional(found->step) : std::nullopt;
}

std::vector<ForeignStep> ListRunSteps(FileSystem& fs, const std::string& directory) {
  std::vector<ForeignStep> steps;
  const auto names = fs.List(directory);
  if (!names.ok()) return steps;
  for (const std::string& name : *names) {
    if (IsNativeName(name)) continue;
    const std::string path = JoinPath(directory, name);
    // If names do not tell, a link is another name of a step: "last.ckpt".
    if (!ParseForeignStep(name) && (names->size() > kMostUnnamed || IsLink(fs, path))) continue;
    const auto info = fs.Stat(path);
    if (!info.ok() || !info->is_directory() || fs.Stat(JoinPath(path, kManifestName)).ok()) continue;
    if (const auto step = ForeignStepOf(fs, path)) steps.push_back({path, step});
  }
  std::ranges::stable_sort(steps, {}, [](const ForeignStep& step) { return *step.step; });
  std::ranges::stable_partition(steps, [&](const ForeignStep& step) {
    const std::optional<Tracker> tracker = TrackerOf(fs, step);
    if (!tracker || !tracker->step || *tracker->step >= *step.step) return false;
    const auto files = ListStepFiles(fs, step.path);
    return files.ok() && LeftBehind(*tracker, step, *files);
  });
  return steps;
}

bool IsForeignStep(FileSystem& fs, const std::string& directory) {
  return HasSeal(fs, directory) || ForeignStepOf(fs, directory) || HasOwnState(fs, directory);
}

Result<std::vector<ForeignStep>> SavedSteps(FileSystem& fs, std::vector<ForeignStep> steps,
                                            std::vector<std::string>& passed_over) {
  const size_t all = steps.size();
  const ForeignStep newest = steps.back();
  std::vector<std::string> unfinished;
  for (; !steps.empty(); steps.pop_back()) {
    const ForeignStep& step = steps.back();
    const auto files = ListStepFiles(fs, step.path);
    std::string why = files.ok() ? WhyUnfinished(fs, step, *files, /*strict=*/true, 0, 0)
                                 : std::string(files.status().message());
    if (why.empty() || HasSeal(fs, step.path)) break;
    unfinished.push_back(std::move(why));
    const auto tracker = TrackerOf(fs, step);
    if (all == 1 || (tracker && tracker->step && *tracker->step >= *step.step)) break;
  }
  if (steps.empty())
    return NotFound(
        "{0}: it is not known which of its {1} steps is finished: {2}; name one: cairn inspect {0}@{3}",
        ParentDir(newest.path), all, unfinished.front(), *newest.step);
  passed_over = std::move(unfinished);
  return steps;
}

const StepFile* FileOfTheFuture(const std::vector<StepFile>& files, int64_t now, int64_t quiet_seconds) {
  const auto found = std::ranges::find_if(
      files, [&](const StepFile& file) { return file.modified_unix_seconds >= now + quiet_seconds; });
  return found == files.end() ? nullptr : &*found;
}

const StepFile* YoungFile(const std::vector<StepFile>& files, int64_t now, int64_t quiet_seconds) {
  const auto found = std::ranges::find_if(files, [&](const StepFile& file) {
    return std::abs(now - file.modified_unix_seconds) < quiet_seconds;
  });
  return found == files.end() ? nullptr : &*found;
}

std::string WhyUnfinished(FileSystem& fs, const ForeignStep& step, const std::vector<StepFile>& files,
                          bool strict, int64_t now, int64_t quiet_seconds) {
  std::string why = WhyFilesSayNo(step, files);
  if (why.empty()) why = WhyTrackerSaysNo(fs, step, files, strict);
  if (!why.empty() || quiet_seconds <= 0) return why;
  const StepFile* const young = YoungFile(files, now, quiet_seconds);
  return young ? fmt::format("{} was written less than {} s ago", JoinPath(step.path, young->name),
                             quiet_seconds)
               : "";
}

std::string WhyNotProvenFinished(FileSystem& fs, const ForeignStep& step, const std::vector<StepFile>& files,
                                 int64_t now, int64_t quiet_seconds) {
  if (HasSeal(fs, step.path)) return {};
  std::string why = WhyUnfinished(fs, step, files, /*strict=*/true, now, quiet_seconds);
  if (!why.empty()) return why;
  const auto tracker = TrackerOf(fs, step);
  const auto is_last = [](const StepFile& file) {
    return std::ranges::any_of(TrainerLayouts(), [&](const TrainerLayout& layout) {
      return (!layout.last.empty() && LastName(file.name) == layout.last) ||
             (!layout.tracker.empty() && file.name == layout.tracker);
    });
  };
  if ((tracker && tracker->step && *tracker->step >= *step.step) || std::ranges::any_of(files, is_last))
    return {};
  return fmt::format("nothing in {} says that its writer has finished; if it has: cairn seal {}", step.path,
                     step.path);
}

std::string NamedBy(FileSystem& fs, const ForeignStep& step) {
  const auto tracker = TrackerOf(fs, step);
  if (tracker && tracker->text && (tracker->step == step.step || *tracker->text == LastNameOf(step.path)))
    return tracker->path;
  const std::string path = CanonicalPath(step.path), run = ParentDir(path);
  const auto names = fs.List(run);
  for (size_t i = 0; names.ok() && i < names->size(); ++i)
    if (const std::string link = JoinPath(run, (*names)[i]); IsLink(fs, link) && CanonicalPath(link) == path)
      return link;
  return {};
}

std::string KindOfName(std::string_view name) {
  std::string kind;
  for (const char c : name.substr(0, name.find("step=")))
    if (!std::isdigit(static_cast<unsigned char>(c)))
      kind += c;
    else if (!kind.ends_with('#'))
      kind += '#';
  return kind;
}

std::vector<std::string> UnknownSteps(FileSystem& fs, const std::string& directory) {
  const auto names = fs.List(directory);
  if (!names.ok() || names->size() > kMostUnnamed || ForeignStepOf(fs, directory) ||
      IsCheckpoint(fs, directory))
    return {};
  std::map<std::string, std::vector<std::string>> kinds;
  for (const std::string& name : *names) {
    const std::string path = JoinPath(directory, name);
    const auto info = fs.LinkStat(path);
    if (!info.ok() || !info->is_directory() || name.starts_with('.') || ForeignStepOf(fs, path)) continue;
    const auto found = RecogniseAll(fs, path);
    if (HasSeal(fs, path) || (found.ok() && !found->empty())) kinds[KindOfName(name)].push_back(path);
  }
  for (auto& [kind, steps] : kinds)
    if (steps.size() > 1) return std::move(steps);
  return {};
}

}  // namespace cairn
