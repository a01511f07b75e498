// Goal mutants: with any one safety removed, another goal must fail. Otherwise it proves nothing.
//
// A mutant changes the operations that reach the disk (left out or done in another order, in what was
// recorded), how a failure is handled (between the work and the failing disk), the clean-up at a start, or
// the result of a check. The product's code is unchanged.
#include <algorithm>
#include <map>

#include "tests/faults/aftermath.h"
#include "tests/faults/damage.h"
#include "tests/faults/digest_switch.h"
#include "tests/faults/errors.h"
#include "tests/faults/goal.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using MutantKind = DiskOp::Kind;
using Journal = SimDisk::Journal;

constexpr uint64_t kStates = 10'000;      // at most, until a mutant is caught
constexpr uint64_t kDamageStride = 2003;  // of 2 million

struct Mutant {
  const char* name;
  std::function<bool()> caught;
};

// ---- Operations left out or in another order ----

// An operation, and the name that its file or directory was made under, empty for those from before.
using Test = std::function<bool(const DiskOp& op, const std::string& made_as)>;

bool Has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

Test On(MutantKind kind, const char* name) {
  return [=](const DiskOp& op, const std::string& made_as) {
    return op.kind == kind && (Has(op.name, name) || Has(made_as, name));
  };
}

bool IsPublish(const DiskOp& op, const std::string&) {
  return op.kind == MutantKind::kRename && Has(op.name, ".partial-") && !Has(op.name2, ".superseded-");
}

bool IsRetirement(const DiskOp& op, const std::string&) {
  return op.kind == MutantKind::kRemove || Has(op.name2, ".deleting-");
}

std::vector<bool> Matches(const Journal& journal, const Test& test) {
  std::map<int, std::string> made;
  std::vector<bool> matches;
  for (const auto& op : journal) {
    if (op->kind == MutantKind::kCreate || op->kind == MutantKind::kMakeDir) made[op->inode] = op->name;
    matches.push_back(test(*op, made[op->inode]));
  }
  return matches;
}

using Rewrite = std::function<Journal(const Journal&)>;

Rewrite Without(const Test& test) {
  return [=](const Journal& journal) {
    const std::vector<bool> out = Matches(journal, test);
    Journal left;
    for (size_t i = 0; i < journal.size(); ++i)
      if (!out[i]) left.push_back(journal[i]);
    return left;
  };
}

// In each save (from one partial directory to the next), what `moved` matches comes before the first that
// `first` matches.
Rewrite Sooner(const Test& moved, const Test& first) {
  return [=](const Journal& journal) {
    const std::vector<bool> moves = Matches(journal, moved), targets = Matches(journal, first);
    Journal rewritten;
    size_t target = SIZE_MAX;
    for (size_t i = 0; i < journal.size(); ++i) {
      if (journal[i]->kind == MutantKind::kMakeDir) target = SIZE_MAX;
      if (target == SIZE_MAX && targets[i]) target = rewritten.size();
      if (moves[i] && target != SIZE_MAX)
        rewritten.insert(rewritten.begin() + static_cast<ptrdiff_t>(target++), journal[i]);
      else
        rewritten.push_back(journal[i]);
    }
    return rewritten;
  };
}

// Kills and power losses until one is not survived.
bool CaughtByCrashes(std::vector<Scenario> scenarios, const Rewrite& rewrite) {
  auto recordings = RecordAll(std::move(scenarios));
  if (!recordings.ok()) return false;
  if (rewrite)
    for (Recording& recording : *recordings) recording.journal = rewrite(recording.journal);
  for (uint64_t seed = 0; seed < kStates; ++seed) {
    SimDisk::Random random(seed);
    const Recording& recording = (*recordings)[random() % recordings->size()];
    const size_t at = random() % (recording.journal.size() + 1);
    if (!(random() % 4 == 0 ? TryKill : TryPowerLoss)(recording, at, random).empty()) return true;
  }
  return false;
}

Mutant Disordered(const char* name, const Rewrite& rewrite) {
  return {name, [=] {
            const TempDir locks(TempDir::Place::kMemory);
            return CaughtByCrashes(SaveScenarios(locks.path()), rewrite);
          }};
}

// ---- Ignored failures ----

class LightlyTaken final : public WrappedFileSystem {
 public:
  LightlyTaken(FileSystem& base, FsCall::Kind kind, bool retries)
      : WrappedFileSystem(base), kind_(kind), retries_(retries) {}

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    const Status status = run();
    if (status.ok() || call.kind != kind_) return status;
    return retries_ ? run() : OkStatus();
  }

 private:
  const FsCall::Kind kind_;
  const bool retries_;
};

Mutant Careless(const char* name, FsCall::Kind kind, bool retries) {
  return {name, [=] {
            const TempDir locks(TempDir::Place::kMemory);
            const Scenario scenario = std::move(SaveScenarios(locks.path()).front());
            const FsWrapper wrapper = [=](FileSystem& fs) {
              return std::make_unique<LightlyTaken>(fs, kind, retries);
            };
            bool fired = true, caught = false;
            for (int64_t at = 0; fired && !caught; ++at) {
              SimDisk::Random random(at);
              caught = !TryFailure(scenario, {.at = at}, wrapper, random, fired).empty();
            }
            return caught;
          }};
}

// ---- Starts that clean up wrongly ----

using Cleaner = std::function<Status(FileSystem& fs, const std::string& run_dir)>;

Mutant Unclean(const char* name, const Cleaner& cleaner) {
  return {name, [=] {
            const TempDir locks(TempDir::Place::kMemory);
            std::vector<Scenario> scenarios = SaveScenarios(locks.path());
            for (Scenario& scenario : scenarios)
              scenario.clean = [cleaner, run_dir = scenario.run_dir](FileSystem& fs) {
                return fs.Stat(run_dir).ok() ? cleaner(fs, run_dir) : OkStatus();
              };
            return CaughtByCrashes(std::move(scenarios), nullptr);
          }};
}

Status RemoveStepsWithoutManifest(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, run_dir));
  for (const int64_t step : steps) {
    const std::string directory = JoinPath(run_dir, StepDirName(step));
    if (!fs.Stat(JoinPath(directory, kManifestName)).ok()) CAIRN_RETURN_IF_ERROR(RemoveTree(fs, directory));
  }
  return OkStatus();
}

Status RemoveAllButTheNewest(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, run_dir));
  for (size_t i = 0; i + 1 < steps.size(); ++i)
    CAIRN_RETURN_IF_ERROR(RemoveTree(fs, JoinPath(run_dir, StepDirName(steps[i]))));
  return OkStatus();
}

class Unsynced final : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    return call.kind == FsCall::Kind::kSyncDir ? OkStatus() : run();
  }
};

Status CleanWithoutSync(FileSystem& fs, const std::string& run_dir) {
  Unsynced unsynced(fs);
  return CleanLeftovers(unsynced, run_dir);
}

std::vector<Mutant> AllMutants(unsigned jobs) {
  return {
      Disordered("no fsync of shards", Without(On(MutantKind::kSync, "shard-"))),
      Disordered("no fsync of the index", Without(On(MutantKind::kSync, "index.h5"))),
      Disordered("no fsync of the manifest", Without(On(MutantKind::kSync, "manifest.json"))),
      Disordered("no fsync of the partial directory", Without(On(MutantKind::kSyncDir, ".partial-"))),
      Disordered("no fsync of the run directory", Without(On(MutantKind::kSyncDir, "run"))),
      Disordered("renamed before the manifest exists",
                 Sooner(IsPublish, On(MutantKind::kCreate, "manifest.json"))),
      Disordered("renamed before the shards exist", Sooner(IsPublish, On(MutantKind::kCreate, "shard-"))),
      Disordered("shards synced before their data",
                 Sooner(On(MutantKind::kSync, "shard-"), On(MutantKind::kWrite, "shard-"))),
      Disordered("the partial directory synced before it is filled",
                 Sooner(On(MutantKind::kSyncDir, ".partial-"), On(MutantKind::kCreate, "shard-"))),
      Disordered("old steps removed before the new one exists",
                 Sooner(IsRetirement, On(MutantKind::kCreate, "shard-"))),
      Careless("a failed fsync is ignored", FsCall::Kind::kSync, false),
      Careless("a failed fsync is tried again", FsCall::Kind::kSync, true),
      Careless("a failed write is ignored", FsCall::Kind::kWrite, false),
      Careless("a failed close is ignored", FsCall::Kind::kClose, false),
      Careless("a failed fsync of a directory is ignored", FsCall::Kind::kSyncDir, false),
      Unclean("a start removes steps without a manifest", RemoveStepsWithoutManifest),
      Unclean("a start removes all but the newest step", RemoveAllButTheNewest),
      Unclean("a start removes files before names are durable", CleanWithoutSync),
      {"digests are not compared",
       [jobs] {
         Tally tally;
         const BlindDigests blind;
         TryDamage({.seed = {}, .jobs = jobs}, kDamageStride, tally);
         return tally.passed() < tally.tried();
       }},
  };
}

}  // namespace

void RunMutants(const GoalOptions& options, Tally& tally) {
  const std::vector<Mutant> mutants = AllMutants(options.jobs);
  for (uint64_t seed = 0; seed < mutants.size(); ++seed)
    if (!options.seed || *options.seed == seed)
      tally.Add(seed, mutants[seed].caught() ? "" : std::string("not caught: ") + mutants[seed].name);
}

}  // namespace cairn
