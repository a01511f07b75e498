// Setting an access time moves a file's time of change, by which the records of `cairn verify` know that a
// file is the same. So the times before and after are collected by run, and at the end its records take the
// new ones over.

#include "tools/commands/archive/cmd_archive_touch.h"

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>

#include "ckpt/model/layout.h"
#include "tools/archive/schedule/touch.h"
#include "tools/check/verify_record.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr double kDaySeconds = 86400;
constexpr double kMaxDays = 36500;

struct TouchOptions {
  std::vector<std::string> paths;
  double older_than_days = 0;
  bool dry_run = false;
  bool json = false;
};

double DaysSince(int64_t unix_seconds, int64_t now) {
  return static_cast<double>(now - unix_seconds) / kDaySeconds;
}

void Print(const std::string& path, const TouchReport& report, int64_t now, bool dry_run) {
  fmt::print("{}: {} {} files, {}", path, dry_run ? "would touch" : "touched", report.files,
             HumanBytes(report.bytes));
  if (report.files > 0)
    fmt::print("; the one accessed longest ago: {:.1f} days ago",
               DaysSince(report.oldest_access_unix_seconds, now));
  fmt::print("\n");
}

ordered_json ToJson(const std::string& path, const TouchReport& report, int64_t now) {
  ordered_json root = {{"path", path},
                       {"files", report.files},
                       {"bytes", report.bytes},
                       {"failures", report.failures},
                       {"problems", report.problems}};
  if (report.files > 0) root["oldest_access_days"] = DaysSince(report.oldest_access_unix_seconds, now);
  return root;
}

// By run directory, for what is known of its steps' bytes.
using MovedByRun = std::map<std::string, std::map<uint64_t, MovedChange>>;

void Note(MovedByRun& moved, const Touched& touched) {
  const std::filesystem::path step = std::filesystem::path(touched.path).parent_path();
  const std::filesystem::path run = step.parent_path();
  if (!ParseStepDirName(step.filename().string())) return;
  moved[run.empty() ? "." : run.string()][touched.inode] = {touched.changed_before_unix_nanoseconds,
                                                            touched.changed_after_unix_nanoseconds};
}

Result<int> RunTouch(const TouchOptions& options) {
  const int64_t now = std::time(nullptr);
  const auto older_than = static_cast<int64_t>(options.older_than_days * kDaySeconds);
  ordered_json reports = ordered_json::array();
  uint64_t failures = 0;
  MovedByRun moved;
  for (const std::string& path : options.paths) {
    CAIRN_ASSIGN_OR_RETURN(const TouchReport report,
                           TouchAccessTimes(path, now, older_than, options.dry_run,
                                            [&](const Touched& touched) { Note(moved, touched); }));
    if (options.json)
      reports.push_back(ToJson(path, report, now));
    else
      Print(path, report, now, options.dry_run);
    for (const std::string& problem : report.problems) PrintProblem(problem);
    if (report.failures > report.problems.size())
      PrintProblem(fmt::format("{}: and {} more", path, report.failures - report.problems.size()));
    failures += report.failures;
  }
  for (const auto& [run, changes] : moved) FollowMovedChanges(FileSystem::Posix(), run, changes);
  if (options.json) PrintJson(reports);
  return failures == 0 ? kExitDone : kExitCheckFailed;
}

}  // namespace

void AddArchiveTouchCommand(CLI::App& archive, Verb& verb) {
  const auto options = std::make_shared<TouchOptions>();
  CLI::App* touch =
      archive.add_subcommand("touch", "put off a purge: set access times to now, and copy nothing");
  touch->add_option("PATH", options->paths, "steps, run directories, any files and directories")->required();
  touch
      ->add_option("--older-than", options->older_than_days,
                   "touch only files that were not accessed for this many days (default 0: all)")
      ->check(CLI::Range(0.0, kMaxDays))
      ->option_text("DAYS");
  touch->add_flag("--dry-run", options->dry_run, "count what would be touched; change nothing");
  touch->add_flag("--json", options->json, "print facts as JSON");
  touch->footer(
      "No other verb and no policy does this. It protects only from a purge by access times, and many sites\n"
      "forbid it: ask first. Contents and modification times stay; links are\n"
      "touched themselves. An archive run that reads the same files at that moment may have to start "
      "again.\n\n" +
      HelpFooter("cairn archive touch /scratch/me/runs/gpt --older-than 20 --dry-run",
                 "something could not be touched; the rest was"));
  touch->callback([options, &verb] { verb = [options] { return RunTouch(*options); }; });
}

}  // namespace cairn
