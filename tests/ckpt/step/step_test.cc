// A step written, read back, damaged and cut short: shard_writer.h, seal.h, step_reader.h and verify.h
// together.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "ckpt/run/committer.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/verify.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/make_step.h"
#include "tests/support/no_exchange.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

namespace filesystem = std::filesystem;

StepRecipe CommitRecipe(int64_t step = 100) {
  StepRecipe recipe =
      RecipeOf({.layers = 2, .hidden = 8, .heads = 2, .ffn = 12, .vocab = 13, .positions = 6}, {2, 2, 2, 1});
  recipe.step = step;
  return recipe;
}

class StepTest : public testing::Test {
 protected:
  void SetUp() override {
    const Status made = MakeStep(fs_, run_, CommitRecipe());
    ASSERT_TRUE(made.ok()) << made.message();
  }
  std::string StepPath(int64_t step = 100) const { return JoinPath(run_, StepDirName(step)); }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir temp_{TempDir::Place::kMemory};
  std::string run_ = temp_ / "run";
};

TEST_F(StepTest, EveryTensorReadsBackWholeAndInParts) {
  const auto step = StepReader::Open(fs_, StepPath());
  ASSERT_TRUE(step.ok()) << step.status().message();
  const StepRecipe recipe = CommitRecipe();
  EXPECT_EQ((*step)->catalog().tensors, TensorsOf(recipe));
  for (uint32_t t = 0; t < (*step)->catalog().tensors.size(); ++t) {
    const TensorEntry& tensor = (*step)->catalog().tensors[t];
    const std::vector<std::byte> expected = ValuesOf(tensor, recipe.seed);
    std::vector<std::byte> whole(tensor.bytes());
    ASSERT_TRUE((*step)->ReadBox(t, Box::Whole(tensor.spec.shape), whole).ok());
    EXPECT_EQ(whole, expected) << DisplayName(tensor);
    Box part = Box::Whole(tensor.spec.shape);
    for (int d = 0; d < part.rank(); ++d) {
      part.offset[d] = part.extent[d] / 3;
      part.extent[d] -= part.offset[d];
    }
    std::vector<std::byte> bytes(part.Volume() * SizeOf(tensor.dtype));
    ASSERT_TRUE((*step)->ReadBox(t, part, bytes).ok());
    EXPECT_EQ(bytes, GatherPiece({.box = part, .range = {0, part.Volume()}}, tensor, expected));
  }
}

// Two pieces side by side, read by rows: chunks that do not fit the cache are read again, and the cache keeps
// its limit.
TEST_F(StepTest, TheCacheStaysWithinItsLimit) {
  StepRecipe recipe;
  recipe.specs = {{.name = "w", .shape = {1024, 2500}, .cuts = {{.dim = 1}}}};
  recipe.topology = {2, 1, 1, 0};
  recipe.weights = Dtype::kF32;
  recipe.optimizer = false;
  recipe.rng_bytes = 0;
  ASSERT_TRUE(MakeStep(fs_, temp_ / "columns", recipe).ok());
  const auto bytes_read = [&](uint64_t cache) {
    const auto step = StepReader::Open(fs_, JoinPath(temp_ / "columns", StepDirName(100)));
    (*step)->SetCacheBytes(cache);
    std::vector<std::byte> rows(128 * 2500 * 4);
    for (uint64_t row = 0; row < 1024; row += 128)
      EXPECT_TRUE((*step)->ReadBox(0, {{row, 0}, {128, 2500}}, rows).ok());
    return (*step)->bytes_read();
  };
  EXPECT_EQ(bytes_read(3 * kChunkBytes), 1024u * 2500 * 4);  // one more than pieces, where chunks change
  EXPECT_GT(bytes_read(kChunkBytes), 3 * 1024u * 2500 * 4);
  EXPECT_EQ(bytes_read(0), bytes_read(kChunkBytes));
}

TEST_F(StepTest, AnIntactStepVerifies) {
  const auto step = StepReader::Open(fs_, StepPath());
  ASSERT_TRUE(step.ok());
  const VerifyReport report = VerifyHash(fs_, **step);
  EXPECT_TRUE(report.problems.empty()) << ToString(report.problems[0]);
  EXPECT_EQ(report.bytes_checked, (*step)->manifest().bytes());
  EXPECT_TRUE(VerifyStructure(**step).problems.empty());
}

// Opens no shard.
class ClosedFileSystem final : public WrappedFileSystem {
 public:
  ClosedFileSystem() : WrappedFileSystem(FileSystem::Posix()) {}

 private:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    const bool closed = call.kind == FsCall::Kind::kOpenForRead && call.path.ends_with(".h5") &&
                        !call.path.ends_with(kIndexName);
    return closed ? IoError("open {}: Too many open files", call.path) : run();
  }
};

TEST_F(StepTest, AFileThatCannotBeOpenedIsNotCalledDamaged) {
  ClosedFileSystem closed;
  const auto step = StepReader::Open(closed, StepPath());
  ASSERT_TRUE(step.ok()) << step.status().message();
  const VerifyReport report = VerifyHash(closed, **step);
  EXPECT_TRUE(report.problems.empty());
  EXPECT_FALSE(report.good());
  EXPECT_EQ(report.status().kind(), StatusKind::kIoError);
  std::filesystem::remove(JoinPath(StepPath(), ShardName(0)));  // a missing file is another case
  const VerifyReport missing = VerifyHash(fs_, **step);
  EXPECT_EQ(missing.problems.size(), 1u);
  EXPECT_TRUE(missing.trouble.ok());
}

// In memory, files are written through the page cache; on a disk, past it.
TEST_F(StepTest, EqualStatesHaveEqualBytes) {
  const TempDir disk(TempDir::Place::kDisk);
  const std::string other = disk / "other";
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // time stamps of HDF5 would count seconds
  ASSERT_TRUE(MakeStep(fs_, other, CommitRecipe()).ok());
  for (const auto& entry : filesystem::directory_iterator(StepPath())) {
    const std::string name = entry.path().filename();
    EXPECT_EQ(*ReadSmallFile(fs_, entry.path(), 1 << 30),
              *ReadSmallFile(fs_, JoinPath(JoinPath(other, StepDirName(100)), name), 1 << 30))
        << name;
  }
}

// Opens and checks like `cairn verify`; true if damage was detected.
bool Detected(FileSystem& fs, const std::string& directory) {
  const auto step = StepReader::Open(fs, directory);
  return !step.ok() || !VerifyHash(fs, **step).problems.empty();
}

void FlipBit(const std::string& path, uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const char byte = static_cast<char>(file.get() ^ 1 << bit % 8);
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(byte);
}

TEST_F(StepTest, AFlippedBitAnywhereIsFound) {
  uint64_t flips = 0;
  for (const auto& entry : filesystem::directory_iterator(StepPath())) {
    const uint64_t bits = 8 * entry.file_size();
    for (uint64_t bit = 3; bit < bits; bit += bits / 97 + 1, ++flips) {
      FlipBit(entry.path(), bit);
      EXPECT_TRUE(Detected(fs_, StepPath())) << entry.path() << " bit " << bit;
      FlipBit(entry.path(), bit);
    }
  }
  EXPECT_GT(flips, 500u);
  EXPECT_FALSE(Detected(fs_, StepPath()));
}

TEST_F(StepTest, DamageNamesTensorFileAndOffset) {
  auto step = StepReader::Open(fs_, StepPath());
  const Piece& piece = (*step)->catalog().pieces[5];
  const std::string path = JoinPath(StepPath(), (*step)->catalog().files[piece.file]);
  FlipBit(path, 8 * (piece.file_offset + 1));
  const VerifyReport report = VerifyHash(fs_, **step);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].file, path);
  EXPECT_EQ(report.problems[0].offset, piece.file_offset);
  EXPECT_EQ(report.problems[0].tensor, DisplayName((*step)->catalog().tensors[piece.tensor]));
  const TensorEntry& tensor = (*step)->catalog().tensors[piece.tensor];
  std::vector<std::byte> bytes(tensor.bytes());
  const Status read = (*step)->ReadBox(piece.tensor, Box::Whole(tensor.spec.shape), bytes);
  EXPECT_EQ(read.kind(), StatusKind::kCorrupt);
  EXPECT_NE(read.message().find(
                fmt::format("{} at byte {}: tensor {}", path, piece.file_offset, DisplayName(tensor))),
            std::string::npos)
      << read.message();
}

TEST_F(StepTest, TruncatedMissingSwappedAndStaleShardsAreFound) {
  const std::string a = JoinPath(StepPath(), ShardName(0)), b = JoinPath(StepPath(), ShardName(2)),
                    aside = temp_ / "aside";
  filesystem::copy(a, aside);
  filesystem::resize_file(a, filesystem::file_size(a) - 4096);
  EXPECT_EQ(StepReader::Open(fs_, StepPath()).status().kind(), StatusKind::kCorrupt);
  filesystem::remove(a);
  EXPECT_EQ(StepReader::Open(fs_, StepPath()).status().kind(), StatusKind::kNotFound);
  filesystem::copy(aside, a);
  EXPECT_FALSE(Detected(fs_, StepPath()));

  filesystem::rename(a, aside);
  filesystem::rename(b, a);
  filesystem::rename(aside, b);
  EXPECT_TRUE(Detected(fs_, StepPath())) << "swapped";
  filesystem::rename(a, aside);
  filesystem::rename(b, a);
  filesystem::rename(aside, b);

  ASSERT_TRUE(MakeStep(fs_, run_, CommitRecipe(120)).ok());  // the same values and sizes under another step
  filesystem::copy(JoinPath(StepPath(120), ShardName(0)), a, filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(Detected(fs_, StepPath())) << "stale";
}

TEST_F(StepTest, OpenNewestWalksBackPastDamagedSteps) {
  ASSERT_TRUE(MakeStep(fs_, run_, CommitRecipe(120)).ok());
  filesystem::remove(JoinPath(StepPath(120), kManifestName));
  std::vector<std::string> skipped;
  const auto step =
      OpenNewestStep(fs_, run_, [&](const Status& status) { skipped.push_back(status.message()); });
  ASSERT_TRUE(step.ok());
  EXPECT_EQ((*step)->manifest().step, 100);
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_NE(skipped[0].find("step-00000120"), std::string::npos);
}

TEST_F(StepTest, SavingAStepAgainKeepsTheSupersededOne) {
  StepRecipe again = CommitRecipe();
  again.seed = 2;
  ASSERT_TRUE(MakeStep(fs_, run_, again).ok());
  EXPECT_FALSE(Detected(fs_, StepPath()));
  EXPECT_FALSE(Detected(fs_, JoinPath(run_, SupersededDirName(100, "7e57"))));
  ASSERT_TRUE(ApplyRetention(fs_, run_, {.keep_last = 1}, "7e57").ok());
  EXPECT_TRUE(filesystem::exists(JoinPath(run_, SupersededDirName(100, "7e57"))));
  ASSERT_TRUE(MakeStep(fs_, run_, CommitRecipe(120)).ok());  // the second one of the branch
  ASSERT_TRUE(ApplyRetention(fs_, run_, {.keep_last = 1}, "7e57").ok());
  EXPECT_FALSE(filesystem::exists(JoinPath(run_, SupersededDirName(100, "7e57"))));
  EXPECT_TRUE(filesystem::exists(StepPath()));
}

// Stops a save and the retention after it at every operation in turn. Afterwards the old step or the new one
// is whole: the new one if the save had reported success. Cleaning up removes neither.
TEST_F(StepTest, AStoppedSaveLeavesTheOldOrTheNewStep) {
  FaultyFileSystem faulty(fs_);
  int64_t stops = 0, committed = 0;
  for (int64_t budget = 0;; budget += kSanitized ? 9 : 1, ++stops) {
    const std::string run = temp_ / fmt::format("stopped-{}", budget);
    filesystem::copy(run_, run, filesystem::copy_options::recursive);
    const int64_t before = faulty.operations();
    faulty.SetBudget(before + budget);
    const Status saved = MakeStep(faulty, run, CommitRecipe(120));
    const Status retired = saved.ok() ? ApplyRetention(faulty, run, {.keep_last = 1}, "7e57") : saved;
    const bool stopped = faulty.operations() > before + budget;
    faulty.SetBudget(-1);

    for (int clean = 0; clean < 2; ++clean) {
      const auto newest = OpenNewestStep(fs_, run, [](const Status& s) { ADD_FAILURE() << s.message(); });
      ASSERT_TRUE(newest.ok()) << newest.status().message();
      EXPECT_TRUE(VerifyHash(fs_, **newest).problems.empty());
      EXPECT_TRUE(!saved.ok() || (*newest)->manifest().step == 120);
      committed += (*newest)->manifest().step == 120;
      ASSERT_TRUE(CleanLeftovers(fs_, run).ok());
    }
    for (const auto& entry : filesystem::directory_iterator(run))
      for (const char* part : {".partial-", ".deleting-", "latest."})
        EXPECT_EQ(entry.path().filename().string().find(part), std::string::npos) << entry.path();
    filesystem::remove_all(run);
    if (!stopped) {
      EXPECT_TRUE(retired.ok());
      break;
    }
  }
  EXPECT_GT(stops, kSanitized ? 10 : 100);
  EXPECT_GT(committed, kSanitized ? 0 : 5);
}

// Stops a save of an existing step at every operation in turn, if two names cannot be exchanged.
// Before and after the clean-up, all ways to the step lead to the old one or to the new one, whole.
TEST_F(StepTest, WithoutExchangeAStoppedSaveLeavesTheOldOrTheNewStep) {
  NoExchange no_exchange(fs_);
  FaultyFileSystem faulty(no_exchange);
  StepRecipe again = CommitRecipe();
  again.topology = {1, 1, 1, 0};
  again.specs.resize(1);
  ASSERT_TRUE(MakeStep(fs_, temp_ / "small", again).ok());
  again.seed = 2;
  again.nonce = "a9a1";
  const Manifest old = ReadManifest(fs_, JoinPath(temp_ / "small", StepDirName(100))).value();
  int64_t waited = 0;
  bool stopped = true;
  for (int64_t budget = 0; stopped; budget += kSanitized ? 9 : 1) {
    SCOPED_TRACE(budget);
    const std::string run = temp_ / fmt::format("stopped-{}", budget);
    const std::string step = JoinPath(run, StepDirName(100));
    filesystem::copy(temp_ / "small", run, filesystem::copy_options::recursive);
    const int64_t before = faulty.operations();
    faulty.SetBudget(before + budget);
    const Status saved = MakeStep(faulty, run, again);
    if (!saved.ok() && budget % 2 == 0) Committer(faulty, run, 100, again.nonce).Abandon();
    stopped = faulty.operations() > before + budget;
    EXPECT_TRUE(saved.ok() || stopped) << saved.message();
    waited += !filesystem::exists(step);
    for (int clean = 0; clean < 2; ++clean) {
      const auto fail = [](const Status& s) { ADD_FAILURE() << s.message(); };
      EXPECT_EQ(ListSteps(fs_, run).value(), std::vector<int64_t>{100});
      for (const auto& opened : {OpenNewestStep(fs_, run, fail), OpenCheckpoint(fs_, step, fail),
                                 OpenCheckpoint(fs_, run, fail), StepReader::Open(fs_, step)}) {
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        EXPECT_TRUE(VerifyHash(fs_, **opened).problems.empty());
        EXPECT_TRUE(!saved.ok() || (*opened)->manifest() != old);
      }
      ASSERT_TRUE(CleanLeftovers(fs_, run, fail).ok());
    }
    EXPECT_TRUE(filesystem::exists(step));
    for (const auto& entry : filesystem::directory_iterator(run))
      EXPECT_EQ(entry.path().filename().string().find(".partial-"), std::string::npos) << entry.path();
    filesystem::remove_all(run);
  }
  EXPECT_GE(waited, kSanitized ? 0 : 2);
}

// A clean-up must not remove the new step before the old one has its name back.
TEST_F(StepTest, IfAStepCannotBeRestoredItsReplacementStays) {
  const std::string partial = JoinPath(run_, PartialDirName(100, "a9a1"));
  filesystem::copy(StepPath(), partial);
  ASSERT_TRUE(MakeMarkedDir(fs_, partial, {.step = true}).ok());
  filesystem::rename(StepPath(), JoinPath(run_, SupersededDirName(100, "a9a1")));
  FaultyFileSystem faulty(fs_);
  faulty.SetBudget(0);
  EXPECT_FALSE(RemoveMarked(faulty, partial, LocksHeld::kRun).ok());
  EXPECT_TRUE(StepReader::Open(fs_, StepPath()).ok());
  ASSERT_TRUE(RemoveMarked(fs_, partial, LocksHeld::kRun).ok());
  EXPECT_FALSE(Detected(fs_, StepPath()));
  EXPECT_FALSE(filesystem::exists(partial));
}

// A listing may miss a file that is renamed meanwhile.
class HalfListing final : public WrappedFileSystem {
 public:
  HalfListing() : WrappedFileSystem(FileSystem::Posix()) {}
  Result<std::vector<std::string>> List(const std::string& path) override {
    auto names = FileSystem::Posix().List(path);
    if (names.ok() && listings_++ == 0) std::erase(*names, StepDirName(100));
    return names;
  }

 private:
  Status Do(const FsCall&, const std::function<Status()>& run) override { return run(); }
  int listings_ = 0;
};

TEST_F(StepTest, AReaderRetriesIfAStepHasNoNameForAMoment) {
  HalfListing half;
  EXPECT_EQ(ListSteps(half, run_).value(), std::vector<int64_t>{100});
}

// The name is taken by another step between the manifest and the catalog.
class OvertakenOpen final : public WrappedFileSystem {
 public:
  OvertakenOpen(std::string step, std::string next)
      : WrappedFileSystem(FileSystem::Posix()), step_(std::move(step)), next_(std::move(next)) {}

 private:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    const Status status = run();
    if (call.kind == FsCall::Kind::kOpenForRead && call.path.ends_with(kManifestName) && !done_) {
      done_ = true;
      filesystem::rename(step_, step_ + ".superseded-a9a1");
      filesystem::rename(next_, step_);
    }
    return status;
  }
  const std::string step_, next_;
  bool done_ = false;
};

TEST_F(StepTest, AStepReplacedDuringOpeningIsOpenedAgain) {
  StepRecipe other = CommitRecipe();
  other.seed = 2;
  other.specs.pop_back();
  ASSERT_TRUE(MakeStep(fs_, temp_ / "other", other).ok());
  OvertakenOpen fs(StepPath(), JoinPath(temp_ / "other", StepDirName(100)));
  const auto opened = StepReader::Open(fs, StepPath());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->catalog().tensors, TensorsOf(other));
}

TEST_F(StepTest, AFullDiskIsReportedAsNoSpace) {
  FaultyFileSystem faulty(fs_);
  faulty.SetError(StatusKind::kNoSpace);
  faulty.SetBudget(20);
  const Status saved = MakeStep(faulty, run_, CommitRecipe(120));
  EXPECT_EQ(saved.kind(), StatusKind::kNoSpace) << saved.message();
}

}  // namespace
}  // namespace cairn
