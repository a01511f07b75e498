// Goal node_steps: a job of two ranks saves on its nodes with parity and, at every second step, in its run,
// and keeps one step on the nodes. Then, at each call of a disk in turn:
//
//   on disks    the power fails, or all processes are killed (sim_disk.h)
//   in memory   all processes are killed, as real ones: copies of the state become the steps' files there, and
//               are filled again once no step has them
//               the call fails on one rank, or all from then on of its node's; the disk is whole again afterwards,
//               and no rank has waited until its deadline
//
// The next start, with the same ranks or after the loss of a node, needs no hand: it resumes from the newest
// step that was reported, or a newer one, with exactly its bits, saves again, and leaves nothing but that.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "ckpt/base/stopwatch.h"
#include "ckpt/io/file_system.h"
#include "ckpt/job/job_save.h"
#include "ckpt/job/local_owner.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/dir_mark.h"
#include "tests/faults/aftermath.h"
#include "tests/faults/failing_file_system.h"
#include "tests/faults/goal.h"
#include "tests/faults/node_job.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace files = std::filesystem;

constexpr int kRanks = 2;
constexpr const char* kParity = "xor:2";
constexpr uint64_t kInMemory = 100'000, kFailures = 200'000;  // first seeds of these

// Four saves, in the order in which they are reported: two to the run, of which the second is still being
// copied there when the next one begins. `reported` gets the step.
Status SaveFour(NodeJob& job, const std::function<void(int64_t step)>& reported) {
  Status first;
  bool told = false;
  const auto note = [&](int64_t step, const Status& status) {
    if (told) reported(step);
    if (first.ok()) first = status;
  };
  note(1, job.Write(1, true, told));
  note(2, job.Write(2, false, told));
  const NodeJob::Save third = job.Begin(3, true);
  job.AwaitWritten(third);
  const Status fourth = job.Write(4, false, told);
  note(4, fourth);
  note(3, job.Await(third, told));
  return first;
}

// ---- The next start ----

// What stays in a run, and in a directory of local steps.
const std::vector<std::string> kKnown{"OWNER",  ".lock", ".run", ".deletion.lock", std::string(kLatestName),
                                      "events", "local"};

// What is left in a directory in which one training has saved and ended.
std::string LeftIn(FileSystem& fs, const std::string& directory, size_t most_steps,
                   const std::vector<std::string>& known) {
  const auto names = fs.List(directory);
  if (!names.ok()) return names.status().message();
  size_t steps = 0;
  for (const std::string& name : *names) {
    if (ParseStepDirName(name))
      ++steps;
    else if (std::ranges::count(known, name) == 0)
      return fmt::format("{}/{} is left", directory, name);
  }
  return steps <= most_steps ? "" : fmt::format("{} has {} steps", directory, steps);
}

// A start of `world` ranks, which must find `newest` or a later step (-1: any, or none).
std::string NextStart(const std::vector<FileSystem*>& disks, const std::string& root, int64_t newest) {
  const bool alone = disks.size() == 1;
  NodeJob job(disks, root, alone ? "" : kParity);
  const Result<int64_t> found = job.Resume();
  if (!found.ok()) return "the next start: " + found.status().message();
  if (*found < newest) return fmt::format("resumed from {}, but {} was reported", *found, newest);
  bool told = false;
  for (const int64_t step : {*found + 10, *found + 20})
    if (const Status saved = job.Write(step, false, told); !saved.ok())
      return fmt::format("the next start saves step {}: {}", step, saved.message());
  job.End();
  for (int rank = 0; rank < static_cast<int>(disks.size()); ++rank) {
    const std::string node = NodeJob::NodeDir(root, rank);
    const auto runs = disks[rank]->List(node);
    if (!runs.ok() || runs->size() != 1) return node + " does not have one run";
    const std::string trouble = LeftIn(*disks[rank], JoinPath(node, runs->front()), 1, kKnown);
    if (!trouble.empty()) return trouble;
  }
  return LeftIn(*disks[0], NodeJob::RunDir(root), 8, kKnown);
}

// ---- On disks ----

Scenario DiskScenario(const std::string& root) {
  const std::string run = NodeJob::RunDir(root);
  files::create_directories(run);  // for its identity
  SimDisk disk;
  Scenario scenario{.name = "steps on the nodes' disks", .run_dir = run};
  const auto prepare = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(MakeDirs(disk, run));
    CAIRN_ASSIGN_OR_RETURN(const HeldRun held, HoldRun(disk, run, {}, [](const std::string&) {}));
    CAIRN_ASSIGN_OR_RETURN(const LocalOwner owner, OwnerOf(run, held.run));
    for (int rank = 0; rank < kRanks; ++rank) {  // a simulated disk has no locked file with a text
      const std::string place = JoinPath(NodeJob::NodeDir(root, rank), held.run);
      CAIRN_RETURN_IF_ERROR(MakeDirs(disk, place));
      CAIRN_RETURN_IF_ERROR(WriteSmallFile(disk, JoinPath(place, kLocalOwnerName), EncodeLocalOwner(owner)));
    }
    return OkStatus();
  };
  if (prepare().ok()) scenario.disk = disk.Settled();
  const auto order = std::make_shared<std::vector<int64_t>>();  // in which steps were reported
  const auto same = [](FileSystem& fs) { return std::vector<FileSystem*>(kRanks, &fs); };
  scenario.act = [=](FileSystem& fs, const std::function<void()>& reported) {
    NodeJob job(same(fs), root, kParity);
    order->clear();
    CAIRN_RETURN_IF_ERROR(job.Resume().status());
    const Status saved = SaveFour(job, [&](int64_t step) {
      order->push_back(step);
      reported();
    });
    job.End();
    return saved;
  };
  scenario.check = [=](FileSystem& fs, size_t reported) -> std::string {
    int64_t newest = -1;
    for (size_t i = 0; i < reported; ++i) newest = std::max(newest, (*order)[i]);
    const auto copy = static_cast<SimDisk&>(fs).Settled();
    return NextStart(same(*copy), root, newest);
  };
  scenario.clean = [=](FileSystem& fs) { return NodeJob(same(fs), root, kParity).Open(); };
  scenario.redo = [](FileSystem&) { return std::string(); };  // each check does
  return scenario;
}

void FailOnDisks(const GoalOptions& options, uint64_t every, Tally& tally) {
  const TempDir dir(TempDir::Place::kMemory);
  const Result<Recording> recorded = Record(DiskScenario(dir.path()));
  if (!recorded.ok()) return tally.Add(0, recorded.status().message());
  for (uint64_t seed = 0; seed < 2 * (recorded->journal.size() + 1); seed += every) {
    if (options.seed && seed != *options.seed) continue;
    SimDisk::Random random(seed);
    const size_t at = seed / 2;
    tally.Add(seed, seed % 2 == 0 ? TryPowerLoss(*recorded, at, random) : TryKill(*recorded, at, random));
  }
}

// ---- In memory ----

// Calls of all ranks' disks, of which one is the last of this process.
class LastCall final : public WrappedFileSystem {
 public:
  LastCall(std::atomic<int64_t>& calls, int64_t last)
      : WrappedFileSystem(FileSystem::Posix()), calls_(calls), last_(last) {}

 protected:
  Status Do(const FsCall&, const std::function<Status()>& run) override {
    if (calls_++ == last_) (void)::kill(::getpid(), SIGKILL);
    return run();
  }

 private:
  std::atomic<int64_t>& calls_;
  const int64_t last_;
};

// Outlives the process that is killed.
struct Told {
  std::atomic<int64_t> newest = -1;  // step that was reported
  std::atomic<int64_t> calls = 0;
};

// The four saves, in a process that is killed at this call. False: there are fewer.
bool SaveUntil(const std::string& root, int64_t last, Told& told) {
  const pid_t child = ::fork();
  if (child == 0) {
    LastCall disk(told.calls, last);
    NodeJob job(std::vector<FileSystem*>(kRanks, &disk), root, kParity);
    if (job.Resume().ok())
      (void)SaveFour(job, [&](int64_t step) { told.newest = std::max<int64_t>(told.newest, step); });
    job.End();
    ::_exit(0);
  }
  int status = 0;
  (void)::waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

// The start after it, on both nodes, or after the loss of one of them, or on the other one alone.
std::string StartAgain(const std::string& root, uint64_t seed, int64_t newest) {
  std::vector<FileSystem*> disks(kRanks, &FileSystem::Posix());
  const int lost = static_cast<int>(seed / 3 % kRanks);
  if (seed % 3 == 1) files::remove_all(NodeJob::NodeDir(root, lost));
  if (seed % 3 == 2) disks.resize(1);
  const std::string trouble = NextStart(disks, root, newest);
  return trouble.empty() ? ""
                         : fmt::format("{} ({})", trouble,
                                       seed % 3 == 0   ? "both nodes"
                                       : seed % 3 == 1 ? "one node was lost"
                                                       : "the first node only");
}

void KillInMemory(const GoalOptions& options, uint64_t every, Tally& tally) {
  void* const page = ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return tally.Add(kInMemory, "no memory");
  const Mapping owner(page, sizeof(Told));
  for (uint64_t at = 0;; at += every) {
    const uint64_t seed = kInMemory + at;
    if (options.seed && seed < *options.seed) continue;
    const TempDir dir(TempDir::Place::kMemory);
    Told& told = *new (page) Told;
    if (!SaveUntil(dir.path(), static_cast<int64_t>(at), told)) return;
    const std::string trouble = StartAgain(dir.path(), at, told.newest);
    tally.Add(seed, trouble.empty() ? ""
                                    : fmt::format("killed at call {}, with step {} reported: {}", at,
                                                  told.newest.load(), trouble));
    if (options.seed) return;
  }
}

// The four saves and a fifth one, while a call of one rank's disk fails.
std::string SaveWithFailure(const std::string& root, int rank, const Failure& failure, bool& fired) {
  FailingFileSystem failing(FileSystem::Posix(), failure);
  std::vector<FileSystem*> disks(kRanks, &FileSystem::Posix());
  disks[static_cast<size_t>(rank)] = &failing;
  int64_t newest = -1;
  const Stopwatch watch;
  {
    NodeJob job(disks, root, kParity);
    (void)job.Open();
    (void)SaveFour(job, [&](int64_t step) { newest = std::max(newest, step); });
    fired = failing.fired();
    failing.Heal();
    bool told = false;
    if (const Status again = job.Open(); !again.ok()) return "opened again: " + again.message();
    if (const Status saved = job.Write(5, true, told); !saved.ok())
      return "the save afterwards: " + saved.message();
    if (told) newest = 5;
    job.End();
  }
  std::string trouble = StartAgain(root, static_cast<uint64_t>(failure.at), newest);
  if (trouble.empty() && watch.Seconds() > NodeJob::kDeadlineSeconds)
    trouble = fmt::format("a rank was not told, and waited: {:.0f} s", watch.Seconds());
  if (trouble.empty()) return "";
  return fmt::format("rank {}, call {} ({}) fails{}: {}", rank, failure.at, failing.what(),
                     failure.lasting ? " and all that follow" : "", trouble);
}

void FailInMemory(const GoalOptions& options, uint64_t every, Tally& tally) {
  for (int rank = 0; rank < kRanks; ++rank) {
    bool fired = true;
    for (uint64_t n = 0; fired; n += every) {
      const uint64_t seed = kFailures + 2 * n + static_cast<uint64_t>(rank);
      if (options.seed && seed < *options.seed) continue;
      if (options.seed && seed > *options.seed) break;
      const TempDir dir(TempDir::Place::kMemory);
      const bool lasting = n % 2 == 1;
      const Failure failure{.at = static_cast<int64_t>(n / 2),
                            .kind = n % 4 < 2 ? StatusKind::kIoError : StatusKind::kNoSpace,
                            .lasting = lasting,
                            .under = lasting ? NodeJob::NodeDir(dir.path(), rank) : ""};
      const std::string trouble = SaveWithFailure(dir.path(), rank, failure, fired);
      if (fired) tally.Add(seed, trouble);
    }
  }
}

}  // namespace

void RunNodeSteps(const GoalOptions& options, Tally& tally) {
  const bool quick = options.form == GoalOptions::Form::kQuick;
  const auto wanted = [&](uint64_t from, uint64_t to) {
    return !options.seed || (*options.seed >= from && *options.seed < to);
  };
  const auto every = [&](uint64_t quickly) { return options.seed || !quick ? 1 : quickly; };
  if (wanted(0, kInMemory)) FailOnDisks(options, every(17), tally);
  if (wanted(kInMemory, kFailures)) KillInMemory(options, every(17), tally);
  // Not quickly: where a rank waits for another, it waits until its deadline.
  if ((!quick || options.seed) && wanted(kFailures, UINT64_MAX)) FailInMemory(options, 1, tally);
}

}  // namespace cairn
