#include "tools/place/finished.h"

#include <cstdlib>
#include <filesystem>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/glob.h"
#include "ckpt/base/parse_number.h"
#include "convert/formats/systems.h"

namespace cairn {
namespace {

std::string LastNameOf(const std::string& path) {
  return std::filesystem::path(CanonicalPath(path)).filename().string();
}

// The contents of a system's tracker file.
struct Tracker {
  std::string path;
  std::optional<std::string> text;  // its first word; nullopt: the file does not exist
  std::optional<int64_t> step;      // that it names
  int64_t written_unix_seconds = 0;

  // It names the step or a later one.
  bool Reaches(const FoundStep& found) const { return step && *step >= *found.step; }
};

// nullopt if the step's system has no tracker. Inside transformers' checkpoint-40 the Trainer's own file
// counts. Lightning's steps have a tracker each, which is only about that step.
std::optional<Tracker> TrackerOf(FileSystem& fs, const FoundStep& step) {
  if (!step.layout || step.layout->trackers.empty()) return std::nullopt;
  if (!step.named && !FindSystem(step.layout->format)->step_of)
    return std::nullopt;  // NeMo writes none beside its steps
  const std::string run = ParentDir(CanonicalPath(step.path));
  const std::vector<std::string>& names = step.layout->trackers;
  const auto is_in = [&](const std::string& directory) {
    return [&fs, directory](const std::string& name) { return fs.Stat(JoinPath(directory, name)).ok(); };
  };
  const auto inside = std::ranges::find_if(names, is_in(step.path));
  const bool alone = !step.named && inside != names.end();
  const auto beside = std::ranges::find_if(names, is_in(run));
  Tracker tracker{.path = alone ? JoinPath(step.path, *inside)
                                : JoinPath(run, beside == names.end() ? names[0] : *beside)};
  const auto text = ReadSmallFile(fs, tracker.path, 4096);
  if (!text.ok()) return tracker;
  tracker.text = text->substr(0, text->find_first_of(" \r\n"));
  if (const auto info = fs.Stat(tracker.path); info.ok())
    tracker.written_unix_seconds = info->modified_unix_seconds;
  if (tracker.text->empty()) return tracker;
  if (alone)
    tracker.step = step.step;
  else if (const auto named = NamedStepOf(fs, JoinPath(run, *tracker.text)))
    tracker.step = named->step;
  else
    tracker.step = ParseNumber<int64_t>(*tracker.text, 0);  // Megatron's has only the number
  return tracker;
}

// Empty if the tracker names the step or a later one, or does not concern it.
std::string WhyTrackerSaysNo(FileSystem& fs, const FoundStep& step, const std::vector<StepFile>& files,
                             bool strict) {
  const std::optional<Tracker> tracker = TrackerOf(fs, step);
  if (!tracker) return {};
  if (!tracker->text)
    return strict
               ? fmt::format("{} does not exist yet; if it was lost: cairn seal {}", tracker->path, step.path)
               : "";
  if (*tracker->text == LastNameOf(step.path) || *tracker->text == "release" || tracker->Reaches(step) ||
      tracker->written_unix_seconds > TimesOf(files).last_written)
    return {};
  return fmt::format("{} still names {}", tracker->path, tracker->text->empty() ? "nothing" : *tracker->text);
}

// Empty if the files that each system writes last exist: one in a step of its own, one in every folder with
// files that it comes after.
std::string WhyFilesSayNo(const FoundStep& step, const std::vector<StepFile>& files) {
  std::set<std::string> missing;
  const auto other = [&](const StepFile& file) {
    return FitsAnyGlob(std::string(LastName(file.name)), step.layout->without_last);
  };
  if (step.named && !step.layout->last.empty() && step.layout->last_after.empty() &&
      std::ranges::none_of(files, other))
    missing.insert(step.layout->last);
  for (const StepFile& file : files)
    for (const TrainerLayout& layout : TrainerLayouts())
      if (!layout.last_after.empty() && FitsGlob(std::string(LastName(file.name)), layout.last_after))
        missing.insert(FolderOf(file.name) + layout.last);
  for (const StepFile& file : files) missing.erase(file.name);
  for (const StepFile& file : files)
    if (std::ranges::find(TrainerLayouts(), file.name, &TrainerLayout::unfinished) != TrainerLayouts().end())
      return fmt::format("{} still exists", JoinPath(step.path, file.name));
  if (!missing.empty()) return fmt::format("{} does not exist yet", JoinPath(step.path, *missing.begin()));
  return files.empty() ? fmt::format("{} has no files yet", step.path) : "";
}

bool IsLink(FileSystem& fs, const std::string& path) {
  const auto info = fs.LinkStat(path);
  return info.ok() && info->kind == FileKind::kLink;
}

}  // namespace

Result<std::vector<FoundStep>> SavedSteps(FileSystem& fs, std::vector<FoundStep> steps,
                                          std::vector<std::string>& passed_over) {
  const size_t all = steps.size();
  const FoundStep newest = steps.back();
  std::vector<std::string> unfinished;
  for (; !steps.empty(); steps.pop_back()) {
    const FoundStep& step = steps.back();
    const auto files = ListStepFiles(fs, step.path);
    std::string why =
        files.ok() ? WhyUnfinished(fs, step, *files, /*strict=*/true) : std::string(files.status().message());
    if (why.empty() || step.sealed) break;
    unfinished.push_back(std::move(why));
    const auto tracker = TrackerOf(fs, step);
    if (all == 1 || (tracker && tracker->Reaches(step))) break;
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

std::string WhyUnfinished(FileSystem& fs, const FoundStep& step, const std::vector<StepFile>& files,
                          bool strict, int64_t now, int64_t quiet_seconds) {
  std::string why = WhyFilesSayNo(step, files);
  if (why.empty()) why = WhyTrackerSaysNo(fs, step, files, strict);
  if (!why.empty() || quiet_seconds <= 0) return why;
  const StepFile* const young = YoungFile(files, now, quiet_seconds);
  return young ? fmt::format("{} was written less than {} s ago", JoinPath(step.path, young->name),
                             quiet_seconds)
               : "";
}

std::string WhyNotProvenFinished(FileSystem& fs, const FoundStep& step, const std::vector<StepFile>& files,
                                 int64_t now, int64_t quiet_seconds) {
  if (step.sealed) return {};
  std::string why = WhyUnfinished(fs, step, files, /*strict=*/true, now, quiet_seconds);
  if (!why.empty()) return why;
  const auto tracker = TrackerOf(fs, step);
  const auto is_last = [](const StepFile& file) {
    return std::ranges::any_of(TrainerLayouts(), [&](const TrainerLayout& layout) {
      return (!layout.last.empty() && LastName(file.name) == layout.last) ||
             std::ranges::find(layout.trackers, file.name) != layout.trackers.end();
    });
  };
  if ((tracker && tracker->Reaches(step)) || std::ranges::any_of(files, is_last)) return {};
  return fmt::format("nothing in {} says that its writer has finished; if it has: cairn seal {}", step.path,
                     step.path);
}

bool IsLeftBehind(FileSystem& fs, const FoundStep& step) {
  const std::optional<Tracker> tracker = TrackerOf(fs, step);
  if (!tracker || !tracker->step || tracker->Reaches(step)) return false;
  const auto files = ListStepFiles(fs, step.path);
  return files.ok() && tracker->written_unix_seconds > TimesOf(*files).last_written;
}

std::string NamedBy(FileSystem& fs, const FoundStep& step) {
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

}  // namespace cairn
