// Goal readers: a reader that polls a run directory while a training saves and prunes finds only whole steps.
//
// On a real directory in memory, in which every third step is saved twice; its file system can exchange two
// names or cannot. A step that is retired or replaced while it is read may vanish from under a reader, who
// then continues with a newer one; no step may ever be damaged, and there is always one.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "ckpt/step/find_step.h"
#include "ckpt/step/step_reader.h"
#include "tests/faults/checkpoints.h"
#include "tests/faults/goal.h"
#include "tests/support/no_exchange.h"
#include "tests/support/temp_dir.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

constexpr int64_t kSaves = 500;  // on each file system
constexpr int64_t kSavesQuick = 200;
constexpr int64_t kSavesLong = 5000;
constexpr int kReaders = 3;
constexpr uint64_t kSeeds = 4;  // values that the saves take by turns

StepRecipe Save(int64_t n, bool again = false) {
  StepRecipe recipe = SmallRecipe({1, 1, 1, 0}, n, static_cast<uint64_t>(n + again) % kSeeds);
  recipe.specs.resize(1);
  recipe.nonce = fmt::format("{:08x}", 2 * n + again);
  return recipe;
}

// Every save's values, known before.
class Known {
 public:
  Known() {
    for (uint64_t n = 0; n < kSeeds; ++n) values_.push_back(ContentOf(Save(static_cast<int64_t>(n))).values);
  }
  bool Fits(const Content& content) const {
    return std::ranges::any_of(std::array{0, 1}, [&](int again) {
      return content.values == values_[static_cast<uint64_t>(content.step + again) % kSeeds];
    });
  }

 private:
  std::vector<Digest> values_;
};

// Opens the newest step and reads all of it. `newest`: the newest that was seen so far.
std::string PollStep(FileSystem& fs, const std::string& run_dir, const Known& known, int64_t& newest) {
  std::string skipped;
  const auto opened = OpenNewestStep(fs, run_dir, [&](const Status& status) { skipped = status.message(); });
  if (!opened.ok()) return opened.status().message();
  if (!skipped.empty()) return "walked back: " + skipped;
  const int64_t step = (*opened)->manifest().step;
  if (step < newest) return fmt::format("step {} after step {}", step, newest);
  newest = step;
  const Result<Content> content = ReadTensors(**opened);
  if (content.ok()) return known.Fits(*content) ? "" : fmt::format("step {} holds other values", step);
  const Result<Manifest> now = ReadManifest(fs, JoinPath(run_dir, StepDirName(step)));
  const bool retired = !now.ok() && content.status().kind() == StatusKind::kNotFound;
  const bool replaced = now.ok() && *now != (*opened)->manifest();
  return retired || replaced ? "" : content.status().message();
}

std::string PollLatest(FileSystem& fs, const std::string& run_dir) {
  const Result<std::string> text = ReadSmallFile(fs, JoinPath(run_dir, kLatestName), 100);
  if (!text.ok()) return text.status().message();
  const bool named = text->ends_with('\n') && ParseStepDirName(text->substr(0, text->size() - 1));
  return named ? "" : "latest says '" + *text + "'";
}

void SaveAmongReaders(FileSystem& fs, const GoalOptions& options, Tally& tally) {
  const TempDir temp(TempDir::Place::kMemory);
  const std::string run_dir = temp / "run";
  const Known known;
  using Form = GoalOptions::Form;
  const int64_t saves = options.form == Form::kLong    ? kSavesLong
                        : options.form == Form::kQuick ? kSavesQuick
                                                       : kSaves;
  std::atomic<int64_t> saved = 0;  // 0: no reader may begin
  std::atomic<bool> done = false;
  std::vector<std::jthread> readers;
  for (int i = 0; i < kReaders; ++i)
    readers.emplace_back([&] {
      saved.wait(0);
      for (int64_t newest = 0; !done;) {
        const auto seed = static_cast<uint64_t>(saved.load());  // where in the row of saves
        tally.Add(seed, PollStep(fs, run_dir, known, newest));
        tally.Add(seed, PollLatest(fs, run_dir));
      }
    });
  for (int64_t n = 1; n <= saves && tally.passed() == tally.tried(); ++n) {
    const StepRecipe recipe = Save(n);
    Status status = MakeStep(fs, run_dir, recipe);
    // Not each: old steps are removed once two have been saved since a training went back.
    if (status.ok() && n % 3 == 0) status = MakeStep(fs, run_dir, Save(n, /*again=*/true));
    if (status.ok())
      status = ApplyRetention(fs, run_dir, {.keep_last = 1 + n % 2}, recipe.nonce,
                              [&](const Status& why) { tally.Add(static_cast<uint64_t>(n), why.message()); });
    tally.Add(static_cast<uint64_t>(n), status.message());
    saved = n;
    saved.notify_all();
  }
  done = true;
  saved = saves;
  saved.notify_all();
}

}  // namespace

void RunReaders(const GoalOptions& options, Tally& tally) {
  UnsyncedFileSystem fs;
  NoExchange no_exchange(fs);
  SaveAmongReaders(fs, options, tally);
  SaveAmongReaders(no_exchange, options, tally);
}

}  // namespace cairn
