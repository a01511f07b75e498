// Goal errors: every call fails once, or fails from then on, as a disk that is full or gone; the quick form
// tries one of the two for each call.
//
// The failure is reported, names the file and keeps its kind; committed steps are kept, also after a power
// loss; no file is synced again after a failed sync; and once the disk works again, the work succeeds. What
// the system calls below return (EINTR, short transfers) is tested in system_calls.cc.
#include "tests/faults/errors.h"

#include <atomic>
#include <thread>

#include "tests/faults/goal.h"
#include "tests/faults/system_calls.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr StatusKind kKinds[] = {StatusKind::kIoError, StatusKind::kNoSpace};
constexpr uint64_t kSeedsPerScenario = 10'000;  // twice the number of calls at most
constexpr int kErrorsRedoEvery = 4;

// Reads an intact step: no failure may change the content that is read.
Scenario LoadScenario(const std::string& root) {
  const StepRecipe recipe = SmallRecipe({1, 2, 2, 1}, 100, 1);
  const std::string run_dir = JoinPath(root, "run");
  SimDisk disk;
  Scenario scenario{.name = "load"};
  if (MakeStep(disk, run_dir, recipe).ok()) scenario.disk = disk.Settled();
  scenario.act = [=](FileSystem& fs, const std::function<void()>& reported) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const Content found, ReadWhole(fs, JoinPath(run_dir, StepDirName(100))));
    reported();
    return found == ContentOf(recipe) ? OkStatus() : Corrupt("other values");
  };
  scenario.check = [](FileSystem&, size_t) { return std::string(); };
  scenario.clean = [](FileSystem&) { return OkStatus(); };
  return scenario;
}

}  // namespace

std::string TryFailure(const Scenario& scenario, const Failure& failure, const FsWrapper& wrapper,
                       SimDisk::Random& random, bool& fired) {
  const auto disk = scenario.disk->Settled();
  FailingFileSystem failing(*disk, failure);
  const auto outer = wrapper ? wrapper(failing) : nullptr;
  size_t reported = 0;
  const Status status = scenario.act(outer ? *outer : failing, [&] { ++reported; });
  fired = failing.fired();
  failing.Heal();
  const auto find_trouble = [&]() -> std::string {
    if (!failing.synced_again().empty()) return "synced again after a failure";
    if (failing.must_surface()) {
      if (status.ok()) return "the failure is not reported";
      if (status.kind() != failure.kind) return "it is reported as another kind";
      if (!failure.lasting && status.message().find(failing.path()) == std::string::npos)
        return "the file is not named";
    }
    if (std::string trouble = scenario.check(*disk, reported); !trouble.empty()) return trouble;
    const SimDisk::Journal journal = disk->journal();
    const auto after = scenario.disk->AfterPowerLoss(journal, journal.size(), random);
    if (std::string trouble = scenario.check(*after, reported); !trouble.empty())
      return "after a power loss: " + trouble;
    if (const Status cleaned = scenario.clean(*disk); !cleaned.ok()) return cleaned.message();
    if (std::string trouble = scenario.check(*disk, reported); !trouble.empty())
      return "after cleaning up: " + trouble;
    if (!scenario.redo || random() % kErrorsRedoEvery != 0) return "";
    return scenario.redo(*disk);
  };
  const std::string trouble = find_trouble();
  if (trouble.empty()) return "";
  return fmt::format("{}, where call {} ({}) fails{}: {}; the work returned: {}", scenario.name, failure.at,
                     failing.what(), failure.lasting ? " and all that follow" : "", trouble,
                     status.ok() ? "success" : status.message());
}

void RunErrors(const GoalOptions& options, Tally& tally) {
  const TempDir locks(TempDir::Place::kMemory);
  std::vector<Scenario> scenarios = AllScenarios(locks.path());
  scenarios.push_back(LoadScenario(locks.path()));
  const auto attempt_all = [&](size_t index) {
    const Scenario& scenario = scenarios[index];
    const uint64_t begin = index * kSeedsPerScenario;
    if (!scenario.disk) return tally.Add(begin, scenario.name + ": cannot set up");
    if (options.seed && *options.seed / kSeedsPerScenario != index) return;
    const bool both = options.seed || options.form != GoalOptions::Form::kQuick;
    SimDisk::Random choice(index);
    bool fired = true, lasting = false;
    for (uint64_t n = options.seed ? *options.seed - begin : 0; fired; ++n) {
      if (n % 2 == 0) lasting = choice() % 2 == 1;
      if (!both && lasting != (n % 2 == 1)) continue;
      const uint64_t seed = begin + n;
      SimDisk::Random random(seed);
      const Failure failure{
          .at = static_cast<int64_t>(n / 2), .kind = kKinds[random() % 2], .lasting = n % 2 == 1};
      const std::string trouble = TryFailure(scenario, failure, nullptr, random, fired);
      if (fired) tally.Add(seed, trouble);
      if (options.seed) return;
    }
  };
  // Each scenario has its own lock files, so that they can run concurrently.
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t index; (index = next++) < scenarios.size();) attempt_all(index);
  };
  {
    std::optional<std::jthread> other;
    if (options.jobs > 1) other.emplace(work);
    work();
  }
  RunSystemCalls(scenarios.size() * kSeedsPerScenario, options, tally);
}

}  // namespace cairn
