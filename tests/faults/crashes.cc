// Goals kill_points and power_loss.
#include "tests/faults/aftermath.h"
#include "tests/faults/goal.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using Amount = GoalOptions::Form;

constexpr uint64_t kEachOnce = 0;

// A kill loses nothing that was written: a second one at the same operation differs only in what follows.
uint64_t KillPoints(Amount form) {
  return form == Amount::kLong ? 200'000 : form == Amount::kQuick ? kEachOnce : 12'000;
}

// Each mutant of the code is caught within 10,000 of them (mutants.cc).
uint64_t PowerLosses(Amount form) {
  return form == Amount::kLong ? 1'000'000 : form == Amount::kQuick ? 10'000 : 100'000;
}

// Data is written into directories that no reader sees: crashes around renames are tried more often.
int Weight(const Recording& recording, size_t at) {
  if (at == recording.journal.size()) return 4;
  const DiskOp::Kind kind = recording.journal[at]->kind;
  return kind == DiskOp::Kind::kWrite || kind == DiskOp::Kind::kResize || kind == DiskOp::Kind::kClose ? 1
                                                                                                       : 4;
}

using Attempt = std::function<std::string(const Recording&, size_t at, SimDisk::Random&)>;

// Seed S is operation S of all recordings in sequence, modulo their number: no operation is left out. Those
// that are tried more often come again behind all of them.
void ForEachOperation(const GoalOptions& options, uint64_t states, Tally& tally, const Attempt& attempt) {
  const TempDir locks(TempDir::Place::kMemory);
  const auto recordings = RecordAll(AllScenarios(locks.path()));
  if (!recordings.ok()) return tally.Add(0, recordings.status().message());
  std::vector<std::pair<const Recording*, size_t>> moments;
  for (const Recording& recording : *recordings)
    for (size_t at = 0; at <= recording.journal.size(); ++at) moments.emplace_back(&recording, at);
  if (states == kEachOnce) states = moments.size();
  for (const Recording& recording : *recordings)
    for (size_t at = 0; at <= recording.journal.size(); ++at)
      for (int i = 1; i < Weight(recording, at); ++i) moments.emplace_back(&recording, at);
  ForEachSeed(options, states, tally, [&](uint64_t seed) {
    SimDisk::Random random(seed);
    const auto& [recording, at] = moments[seed % moments.size()];
    return attempt(*recording, at, random);
  });
}

}  // namespace

void RunKillPoints(const GoalOptions& options, Tally& tally) {
  ForEachOperation(options, KillPoints(options.form), tally, TryKill);
}

void RunPowerLoss(const GoalOptions& options, Tally& tally) {
  ForEachOperation(options, PowerLosses(options.form), tally, TryPowerLoss);
}

}  // namespace cairn
