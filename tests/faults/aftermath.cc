#include "tests/faults/aftermath.h"

namespace cairn {
namespace {

constexpr int kRedoEvery = 200;  // states; the work done over again takes a hundred times as long as a check

std::string Clean(const Recording& recording, FileSystem& fs) {
  const Status status = recording.scenario.clean(fs);
  return status.ok() ? "" : "cleaning up: " + status.message();
}

// `disk` is what the next start finds; its journal holds what is not durable yet.
std::string Aftermath(const Recording& recording, SimDisk& disk, size_t reported, SimDisk::Random& random) {
  const auto check = [&](SimDisk& found, const char* when) {
    const std::string trouble = recording.scenario.check(found, reported);
    return trouble.empty() ? "" : fmt::format("{}: {}", when, trouble);
  };
  if (std::string trouble = check(disk, "at the next start"); !trouble.empty()) return trouble;
  const size_t cleaning_from = disk.operations();
  if (std::string trouble = Clean(recording, disk); !trouble.empty()) return trouble;

  std::unique_ptr<SimDisk> second;
  if (disk.operations() > cleaning_from) {
    if (std::string trouble = check(disk, "after cleaning up"); !trouble.empty()) return trouble;
    const SimDisk::Journal journal = disk.journal();
    const size_t at = cleaning_from + random() % (journal.size() + 1 - cleaning_from);
    const bool kill = random() % 4 == 0;
    second = kill ? disk.AfterKill(journal, at, random) : disk.AfterPowerLoss(journal, at, random);
    if (std::string trouble = check(*second, "crashed while cleaning up"); !trouble.empty()) return trouble;
    if (std::string trouble = Clean(recording, *second); !trouble.empty()) return trouble;
    if (std::string trouble = check(*second, "cleaned up again"); !trouble.empty()) return trouble;
  }
  if (random() % kRedoEvery != 0) return "";
  static std::mutex real_locks;  // another thread would look like a rival process in the run directory
  const std::lock_guard lock(real_locks);
  return recording.scenario.redo(second ? *second : disk);
}

std::string Named(const Recording& recording, size_t at, const std::string& trouble,
                  const std::string& story = "") {
  return trouble.empty() ? "" : fmt::format("{}: {}\n{}", recording.Describe(at), trouble, story);
}

}  // namespace

std::string TryKill(const Recording& recording, size_t at, SimDisk::Random& random) {
  const auto disk = recording.scenario.disk->AfterKill(recording.journal, at, random);
  return Named(recording, at, Aftermath(recording, *disk, recording.ReportedBefore(at), random));
}

std::string TryPowerLoss(const Recording& recording, size_t at, SimDisk::Random& random) {
  SimDisk::Random again = random;  // for the story, if requested
  const auto disk = recording.scenario.disk->AfterPowerLoss(recording.journal, at, random);
  const std::string trouble = Aftermath(recording, *disk, recording.ReportedBefore(at), random);
  std::string story;
  if (!trouble.empty()) (void)recording.scenario.disk->AfterPowerLoss(recording.journal, at, again, &story);
  return Named(recording, at, trouble, story);
}

Result<std::vector<Recording>> RecordAll(std::vector<Scenario> scenarios) {
  std::vector<Recording> recordings;
  for (Scenario& scenario : scenarios) {
    CAIRN_ASSIGN_OR_RETURN(Recording recording, Record(std::move(scenario)));
    recordings.push_back(std::move(recording));
  }
  return recordings;
}

}  // namespace cairn
