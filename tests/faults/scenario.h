// Work on a disk that will fail: saves, prunes, reshapes, archives; each done once, undisturbed, and
// recorded. And the checks of the result after a fault at any operation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/faults/checkpoints.h"
#include "tests/faults/sim_disk.h"

namespace cairn {

struct Scenario {
  std::string name;
  std::string run_dir;            // where it saves
  std::unique_ptr<SimDisk> disk;  // before it began: the base of the journal
  // The user's work: runs on any file system, and reports each success through `reported`. Ends early on
  // errors.
  std::function<Status(FileSystem& fs, const std::function<void()>& reported)> act;
  // Empty if `fs` has everything that it must after `reported` successes were reported, else the complaint.
  std::function<std::string(FileSystem& fs, size_t reported)> check;
  // The clean-up at the next start.
  std::function<Status(FileSystem& fs)> clean;
  // Does everything again, like a user, and returns what is still missing.
  std::function<std::string(FileSystem& fs)> redo;
};

// A scenario and the operations that it took.
struct Recording {
  Scenario scenario;
  SimDisk::Journal journal;
  std::vector<size_t> reports;  // lengths of the journal when the first, second, ... success was reported

  // How many successes had been reported before operation `at`.
  size_t ReportedBefore(size_t at) const;
  std::string Describe(size_t at) const;
};
Result<Recording> Record(Scenario scenario);

// All of them, over several topologies. Real lock files are made in `lock_dir`, an existing empty directory:
// locks are not kept through FileSystem, so the paths on the simulated disk are those of real directories.
std::vector<Scenario> AllScenarios(const std::string& lock_dir);
// Saves and prunes only, for the mutants.
std::vector<Scenario> SaveScenarios(const std::string& lock_dir);
// `cairn seal --publish`, on a disk that can exchange two names or cannot.
Scenario PublishScenario(const std::string& root, bool exchanges);

}  // namespace cairn
