#include "runtime/saving/checkpointer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "ckpt/job/job_ranks.h"
#include "ckpt/job/local_save.h"
#include "ckpt/model/save_interval.h"
#include "ckpt/run/run_events.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/step_reader.h"
#include "ckpt/step/verify.h"
#include "runtime/saving/auto_interval.h"
#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/saving/checkpointer_options.h"
#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_world.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

constexpr Role kRoles[] = {Role::kMaster, Role::kExpAvg, Role::kExpAvgSq};

// An element after the optimizer's step: any bits, the same on every topology.
uint32_t Updated(uint32_t bits) { return (bits * 1664525 + 1013904223) & 0xbfffffff; }  // finite

std::vector<std::byte> AfterSteps(std::vector<std::byte> values, int64_t steps) {
  for (size_t i = 0; i < values.size(); i += 4) {
    uint32_t bits;
    std::memcpy(&bits, values.data() + i, 4);
    for (int64_t step = 0; step < steps; ++step) bits = Updated(bits);
    std::memcpy(values.data() + i, &bits, 4);
  }
  return values;
}

// The whole tensor of that role after `steps` steps.
std::vector<std::byte> Expected(const ParameterSpec& spec, Role role, int64_t steps, Dtype weights) {
  const Role stored = role == Role::kWeight ? Role::kMaster : role;
  auto values = AfterSteps(ValuesOf({spec, stored, Dtype::kF32}, 1), steps);
  return role == Role::kWeight ? Rounded(values, weights) : values;
}

// A rank's state: 16-bit weights, and this data parallel rank's partition of masters and moments.
class RankState {
 public:
  RankState(const std::vector<ParameterSpec>& specs, const Topology& topology, int rank, Dtype dtype)
      : specs_(specs), topology_(topology), rank_(rank), dtype_(dtype) {
    auto layout = LayoutOf(specs, topology, rank);
    EXPECT_TRUE(layout.ok());
    layout_ = *std::move(layout);
    const uint64_t all = layout_.dense.partition_size * topology.dp;
    weights_.resize(all * 2);
    states_.assign(3, std::vector<std::byte>(layout_.dense.partition_size * 4));
    buffers_.emplace(specs_, layout_);
    buffers_->parts.push_back({Role::kWeight, dtype_, weights_.data(), {0, all}});
    for (size_t i = 0; i < states_.size(); ++i)
      buffers_->parts.push_back({kRoles[i], Dtype::kF32, states_[i].data(),
                                 layout_.dense.Partition(topology.Coordinate(rank, Axis::kDp))});
    buffers_->rng_state = std::string(40, static_cast<char>('a' + rank));
  }

  StateBuffers& buffers() { return *buffers_; }

  // As it is after `steps` steps of the training.
  void Fill(int64_t steps) {
    Visit([&](Role role, const LocalParameter& p, std::span<std::byte> to, uint64_t skip) {
      const ParameterSpec& spec = specs_[p.index];
      const Piece piece{.tensor = 0, .file = 0, .box = p.box, .range = {0, p.box.Volume()}, .chunks = {}};
      const Dtype dtype = role == Role::kWeight ? dtype_ : Dtype::kF32;
      const auto bytes = GatherPiece(piece, {spec, role, dtype}, Expected(spec, role, steps, dtype_));
      std::memcpy(to.data(), bytes.data() + skip, to.size());
    });
  }

  // Another bit in one of the values that other ranks hold, too. Returns the parameter's name.
  std::string FlipACopy(std::mt19937_64& random) {
    std::vector<std::pair<std::string, std::span<std::byte>>> copies;
    Visit([&](Role role, const LocalParameter& p, std::span<std::byte> bytes, uint64_t) {
      const ParameterSpec& spec = specs_[p.index];
      const bool replicated = topology_.dp > 1 && role == Role::kWeight;
      if (replicated || (topology_.tp > 1 && !IsCutAlong(spec, Axis::kTp)))
        copies.emplace_back(spec.name, bytes);
    });
    auto& [name, bytes] = copies[random() % copies.size()];
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 << random() % 8);
    return name;
  }

  // True if it is equal, bit for bit.
  bool Is(int64_t steps) {
    RankState other(specs_, topology_, rank_, dtype_);
    other.Fill(steps);
    return states_ == other.states_ && weights_ == other.weights_;
  }

 private:
  // Calls back for each part's range of each parameter: its place, and how many of its bytes come before.
  template <typename Visitor>
  void Visit(const Visitor& visit) {
    for (const StateBuffers::Part& part : buffers_->parts)
      for (const LocalParameter& p : layout_.parameters) {
        const uint64_t size = SizeOf(part.dtype);
        const uint64_t begin = std::max(p.flat_begin, part.covers.begin);
        const uint64_t end = std::min(p.flat_begin + p.box.Volume(), part.covers.end);
        if (begin < end)
          visit(part.role, p, std::span(part.data + (begin - part.covers.begin) * size, (end - begin) * size),
                (begin - p.flat_begin) * size);
      }
  }

  const std::vector<ParameterSpec>& specs_;
  const Topology topology_;
  const int rank_;
  const Dtype dtype_;
  RankLayout layout_;
  std::vector<std::byte> weights_;
  std::vector<std::vector<std::byte>> states_;
  std::optional<StateBuffers> buffers_;
};

class CheckpointerTest : public testing::Test {
 protected:
  // Trains on `topology` from the newest step (which must be `from`; 0: none) to `to`.
  void Train(const Topology& topology, int64_t from, int64_t to, CheckpointerOptions options = {}) {
    options.config.save = run_;
    options.topology = topology;
    options.model = ModelJson({});
    if (options.config.save_interval == "0") options.config.save_interval = "2";
    ThreadWorld world(topology.world());
    world.Run([&](const std::shared_ptr<Mailbox>& mailbox) {
      ControlPlane votes(mailbox->Duplicate("votes"), kTimeout);
      RankState state(specs_, topology, mailbox->rank(), weights_);
      for (StateBuffers::Part& part : state.buffers().parts) part.on_gpu = options.device_copy != nullptr;
      auto made = Checkpointer::Create(options, std::make_unique<ControlPlane>(mailbox, kTimeout));
      ASSERT_TRUE(made.ok()) << made.status().message();
      Checkpointer& checkpointer = **made;
      auto resumed = checkpointer.Resume(state.buffers());
      ASSERT_TRUE(resumed.ok()) << resumed.status().message();
      TrainState train = resumed->value_or(TrainState{.seed = 1});
      ASSERT_EQ(train.iteration, from);
      if (from == 0) state.Fill(0);
      EXPECT_TRUE(state.Is(from)) << "rank " << mailbox->rank();
      ASSERT_TRUE(checkpointer.Prepare(state.buffers()).ok());
      while (train.iteration < to) {
        const bool root = mailbox->rank() == 0;
        if (meanwhile_)
          while (checkpointer.Busy()) std::this_thread::yield();
        if (meanwhile_ && root) meanwhile_(train.iteration);
        const auto idle = Agree(votes, checkpointer.Busy() ? Aborted("busy") : OkStatus(), "busy");
        const bool again = root && checkpointer.SavesAgain();
        const auto due = Agree(votes, again ? Aborted("again") : OkStatus(), "again");
        ASSERT_TRUE(checkpointer.BeforeOptimizerStep().ok());
        state.Fill(++train.iteration + other_);
        const bool force = train.iteration == to || !due.ok();
        ASSERT_TRUE(checkpointer.AfterStep(train, state.buffers(), force, !idle.ok()).ok());
      }
      const Status finished = checkpointer.Finish();
      EXPECT_TRUE(finished.ok()) << finished.message();
      EXPECT_EQ(checkpointer.Stats().failed, failed_);
      EXPECT_EQ(checkpointer.Stats().failed_in_a_row, 0);
    });
  }

  // Everything in the step of the run directory, read like the tools do.
  void ExpectStep(int64_t step) {
    const std::string directory = JoinPath(run_, StepDirName(step));
    const auto reader = StepReader::Open(FileSystem::Posix(), directory);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    for (uint32_t t = 0; t < (*reader)->catalog().tensors.size(); ++t) {
      const TensorEntry& tensor = (*reader)->catalog().tensors[t];
      if (tensor.role == Role::kRng) continue;
      std::vector<std::byte> bytes(tensor.bytes());
      ASSERT_TRUE((*reader)->ReadBox(t, Box::Whole(tensor.spec.shape), bytes).ok());
      EXPECT_EQ(bytes, Expected(tensor.spec, tensor.role, step, weights_)) << DisplayName(tensor);
    }
  }

  static constexpr double kTimeout = 120;
  int64_t other_ = 0;  // of a training with other values: the number of steps it is ahead
  std::function<void(int64_t iteration)> meanwhile_;  // between two steps, with no save in progress
  int64_t failed_ = 0;                                // saves
  Dtype weights_ = Dtype::kBF16;
  const std::vector<ParameterSpec> specs_ = SpecsOf({});
  const TempDir dir_;
  const std::string run_ = dir_ / "run";
};

// Copies during the next step, background writes, and a step that overlaps: on each topology from what
// another one left.
TEST_F(CheckpointerTest, LazySavesLoadIntoAnotherTopology) {
  Train({.tp = 2, .pp = 1, .dp = 2, .zero = 1}, 0, 5);
  ExpectStep(4);
  ExpectStep(5);
  Train({.tp = 1, .pp = 2, .dp = 1}, 5, 9, {.config = {.save_overlap = "double"}});
  Train({.tp = 1, .pp = 1, .dp = 3, .zero = 1}, 9, 11, {.config = {.save_mode = "copy"}});
  ExpectStep(11);
}

class FlippedBitTest : public CheckpointerTest {
 protected:
  // Before every second save one rank gets another bit in a copy. Returns how many saves noticed it.
  int Noticed(const Topology& topology, int flips, const std::string& copies = "fail") {
    CheckpointerOptions options{.topology = topology, .model = ModelJson({})};
    options.config.save = dir_ / ToString(topology);
    options.config.keep_last = 2;
    options.config.copies = copies;
    std::atomic<int> noticed = 0;
    ThreadWorld world(topology.world());
    world.Run([&](const std::shared_ptr<Mailbox>& mailbox) {
      RankState state(specs_, topology, mailbox->rank(), weights_);
      auto made = Checkpointer::Create(options, std::make_unique<ControlPlane>(mailbox, kTimeout));
      ASSERT_TRUE(made.ok()) << made.status().message();
      Checkpointer& checkpointer = **made;
      ASSERT_TRUE(checkpointer.Resume(state.buffers()).ok());
      ASSERT_TRUE(checkpointer.Prepare(state.buffers()).ok());
      std::mt19937_64 random(7);  // the same on all ranks
      TrainState train{.seed = 1};
      while (train.iteration < 2 * flips) {
        ASSERT_TRUE(checkpointer.BeforeOptimizerStep().ok());
        state.Fill(++train.iteration);
        const auto victim = static_cast<int>(random() % static_cast<uint64_t>(topology.world()));
        std::mt19937_64 of_victim(random());
        std::string name;
        if (train.iteration % 2 == 0 && mailbox->rank() == victim) name = state.FlipACopy(of_victim);
        const int64_t before = checkpointer.Stats().copies_differ;
        ASSERT_TRUE(checkpointer.AfterStep(train, state.buffers(), /*force=*/true, false).ok());
        const Status saved = checkpointer.Finish();
        EXPECT_EQ(saved.ok(), train.iteration % 2 == 1 || copies == "warn") << saved.message();
        const bool alarm = checkpointer.Stats().copies_differ > before;
        if (alarm && mailbox->rank() == 0) ++noticed;
        if (!name.empty() && copies == "fail") {
          EXPECT_NE(checkpointer.Stats().alarm.find(name + " ("), std::string::npos)
              << name << ": " << checkpointer.Stats().alarm;
        }
      }
    });
    return noticed;
  }
};

TEST_F(FlippedBitTest, OneFlippedBitInACopyFailsTheSave) {
  for (const Topology& topology : {Topology{.dp = 3}, Topology{.tp = 2, .dp = 2, .zero = 1},
                                   Topology{.tp = 2}, Topology{.tp = 2, .pp = 2}}) {
    EXPECT_EQ(Noticed(topology, 10), 10) << ToString(topology);
    const std::string run = dir_ / ToString(topology);
    EXPECT_EQ(*ListSteps(FileSystem::Posix(), run), (std::vector<int64_t>{17, 19}));
    const auto events = *ReadEvents(FileSystem::Posix(), run);
    EXPECT_EQ(std::ranges::count(events, RunEventKind::kAlarm, &RunEvent::kind), 10);
    EXPECT_EQ(events.back().step, 20);
  }
}

TEST_F(FlippedBitTest, AStepIsSavedNeverthelessIfRequestedAndItsHistorySaysSo) {
  EXPECT_EQ(Noticed({.dp = 2}, 2, "warn"), 2);
  const auto manifest =
      ReadManifest(FileSystem::Posix(), JoinPath(dir_ / ToString(Topology{.dp = 2}), StepDirName(4)));
  ASSERT_TRUE(manifest.ok());
  EXPECT_NE(manifest->history.dump().find("copies differ"), std::string::npos);
}

// Here "device memory" is memory like any other.
TEST_F(CheckpointerTest, StateOnAGpuIsCopiedByDeviceCopy) {
  std::atomic<uint64_t> to_host = 0, to_gpu = 0;
  const auto copy = [&](void* to, const void* from, size_t bytes, bool to_device) {
    std::memcpy(to, from, bytes);
    (to_device ? to_gpu : to_host) += bytes;
  };
  uint64_t state = 0;
  for (const ParameterSpec& spec : specs_) state += spec.shape.Volume() * (2 + 3 * 4);
  Train({.tp = 1, .pp = 1, .dp = 2, .zero = 1}, 0, 2, {.device_copy = copy});
  EXPECT_EQ(to_host, state);
  EXPECT_EQ(to_gpu, 0u);
  Train({.tp = 1, .pp = 1, .dp = 1}, 2, 3, {.device_copy = copy});
  EXPECT_EQ(to_gpu, state);
}

TEST_F(CheckpointerTest, AllRanksSkipTheSameSaves) {
  Train({.tp = 2, .pp = 2, .dp = 1}, 0, 30, {.config = {.save_interval = "1", .save_overlap = "skip"}});
  ExpectStep(30);
}

// Saved at 10 and 20; at 30 all ranks decide alike. A resumed training does not measure again.
TEST_F(CheckpointerTest, AutoIntervalIsMeasuredAndKept) {
  const Topology topology{.tp = 1, .pp = 1, .dp = 2, .zero = 1};
  const auto steps = [&] { return *ListSteps(FileSystem::Posix(), run_); };
  const auto interval_at = [&](int64_t step) {
    const auto reader = StepReader::Open(FileSystem::Posix(), JoinPath(run_, StepDirName(step)));
    return reader.ok() ? IntField((*reader)->manifest().state, "save_interval") : 0;
  };
  Train(topology, 0, 33, {.config = {.save_interval = "auto", .mtbf = 1e-4 / 3600}});
  const int64_t interval = interval_at(33);
  ASSERT_GT(interval, 0);
  std::vector<int64_t> expected = {10, 20};
  for (int64_t step = 30; step < 33; ++step)
    if (step % interval == 0) expected.push_back(step);
  expected.push_back(33);
  EXPECT_EQ(steps(), expected);
  Train({.tp = 2}, 33, 35, {.config = {.save_interval = "auto", .mtbf = 1e12 / 3600}});
  EXPECT_EQ(steps().back(), 35);
  EXPECT_EQ(interval_at(35), interval);
}

// The interval that one rank chooses; an iteration takes a millisecond, and failures come every second.
int64_t Chosen(double seconds, double stall, double beyond_local) {
  int64_t interval = 0;
  ThreadWorld(1).Run([&](const std::shared_ptr<Mailbox>& mailbox) {
    ControlPlane control(mailbox, 60);
    AutoInterval found;
    for (int64_t step = 0; step < 3 * AutoInterval::kEvery; ++step)
      found.Step(AutoInterval::Clock::time_point(std::chrono::milliseconds(step)));
    for (int save = 0; save < AutoInterval::kSaves; ++save) found.Saved(seconds, stall);
    ASSERT_TRUE(found.Decides());
    const auto chosen = found.Choose(control, 1.0 / 3600, beyond_local);
    ASSERT_TRUE(chosen.ok());
    interval = *chosen;
  });
  return interval;
}

// Only the time that the training waits counts as a stall, and local steps survive most failures: by Young,
// the square root of 2 * 0.1 ms * 1 s is 14 iterations, and roots of 100 / 2 and 1 / 0.15 are the factors.
TEST(AutoIntervalTest, CountsTheStallAndTheFailuresBeyondTheNodes) {
  const int64_t all = Chosen(1e-4, 1e-4, 1);
  EXPECT_EQ(all, 14);
  EXPECT_EQ(Chosen(1e-4, 1e-6, 1), 2);
  EXPECT_EQ(Chosen(1e-4, 1e-4, BeyondLocal(true)), 36);
  EXPECT_NEAR(BeyondLocal(true), 0.15, 1e-9);
  EXPECT_NEAR(BeyondLocal(false), 0.85, 1e-9);
}

// With local steps, the failures that these do not survive decide.
TEST_F(CheckpointerTest, AutoIntervalKnowsTheLocalSteps) {
  const CheckpointerOptions options{.config = {.save_interval = "auto",
                                               .mtbf = 30,
                                               .save_local = dir_ / "local-{rank}",
                                               .save_local_interval = 5,
                                               .redundancy = "xor:2"}};
  testing::internal::CaptureStdout();
  Train({.tp = 1, .pp = 1, .dp = 2, .zero = 1}, 0, 31, options);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("failures that local steps do not survive every 200 h on 1 node"), said.npos) << said;
}

// Missing while steps 3 to 10 are trained: the saves of 6 and 8 fail, each noticed one step later; that of 11
// does not. Then the interval.
TEST_F(CheckpointerTest, AFailedSaveIsRetriedSoonIfRequested) {
  meanwhile_ = [&](int64_t iteration) {
    if (iteration == 2) std::filesystem::rename(run_, dir_ / "gone");
    if (iteration == 10) std::filesystem::rename(dir_ / "gone", run_);
  };
  const auto steps = [&] { return *ListSteps(FileSystem::Posix(), run_); };
  failed_ = 2;
  Train({.tp = 2}, 0, 14, {.config = {.save_interval = "6", .on_save_error = "warn"}});
  EXPECT_EQ(steps(), (std::vector<int64_t>{11, 12, 14}));
  ExpectStep(11);
  meanwhile_ = [&](int64_t iteration) {
    if (iteration == 15) std::filesystem::rename(run_, dir_ / "gone");
    if (iteration == 16) std::filesystem::rename(dir_ / "gone", run_);
  };
  failed_ = 1;
  Train({.tp = 2}, 14, 20, {.config = {.save_interval = "4"}});
  EXPECT_EQ(steps(), (std::vector<int64_t>{11, 12, 14, 20}));
}

TEST_F(CheckpointerTest, CompressionAndSplittingMayChangeBetweenSaves) {
  const Topology topology{.tp = 1, .pp = 1, .dp = 2, .zero = 1};
  Train(topology, 0, 6, {.config = {.save_codec = "zstd", .split_master = true}});
  ExpectStep(6);
  Train(topology, 6, 12, {.config = {.save_codec = "auto"}});
  ExpectStep(12);
}

TEST_F(CheckpointerTest, DerivedWeightsLoadBack) {
  weights_ = Dtype::kF16;
  Train({.tp = 2, .pp = 1, .dp = 2, .zero = 1}, 0, 4, {.config = {.split_master = true}});
  ExpectStep(4);
  Train({.tp = 1, .pp = 1, .dp = 1}, 4, 6, {.config = {.split_master = true}});
  ExpectStep(6);
}

TEST_F(CheckpointerTest, OldStepsAreRemovedAfterTheNewOneIsReadBack) {
  Train({.tp = 1, .pp = 1, .dp = 2, .zero = 1}, 0, 10, {.config = {.keep_last = 2}});
  const auto steps = ListSteps(FileSystem::Posix(), run_);
  ASSERT_TRUE(steps.ok());
  EXPECT_EQ(*steps, (std::vector<int64_t>{8, 10}));
}

// Reading one shard of step 4 returns other bytes than were written.
class LyingDisk final : public UnsyncedFileSystem {
 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    CAIRN_RETURN_IF_ERROR(UnsyncedFileSystem::Do(call, run));
    const bool written = call.kind == FsCall::Kind::kClose && call.path.find(".partial-") != call.path.npos;
    if (written && call.path.find(StepDirName(4)) != call.path.npos && call.path.ends_with(ShardName(1)) &&
        !std::exchange(lied_, true))
      FlipByte(call.path, std::filesystem::file_size(call.path) / 2);
    return OkStatus();
  }

 private:
  bool lied_ = false;
};

TEST_F(CheckpointerTest, ADamagedSaveNeverBecomesTheNewestStep) {
  LyingDisk disk;
  failed_ = 1;
  int looks = 0;
  meanwhile_ = [&](int64_t iteration) {
    if (iteration != 4) return;
    ++looks;
    EXPECT_EQ(*ListSteps(FileSystem::Posix(), run_), std::vector<int64_t>{2});
    EXPECT_EQ(LatestOf(FileSystem::Posix(), run_), 2);
  };
  Train({.tp = 1, .pp = 1, .dp = 2, .zero = 1}, 0, 6, {.config = {.keep_last = 2}, .fs = disk});
  EXPECT_EQ(looks, 1);
  ExpectStep(6);
}

// One start could not read the newest step and went back to the step before it.
TEST_F(CheckpointerTest, DoesNotResumeFromAnAbandonedStep) {
  Train({.tp = 2, .pp = 1, .dp = 1}, 0, 6);
  const std::string shard = JoinPath(JoinPath(run_, StepDirName(6)), ShardName(0));
  std::filesystem::rename(shard, dir_ / "aside");
  Train({.tp = 2, .pp = 1, .dp = 1}, 4, 5);
  std::filesystem::rename(dir_ / "aside", shard);
  EXPECT_EQ(*ListCurrentSteps(FileSystem::Posix(), run_), (std::vector<int64_t>{2, 4, 5}));
  Train({.tp = 1, .pp = 1, .dp = 1}, 5, 7);
  EXPECT_EQ(*ListCurrentSteps(FileSystem::Posix(), run_), (std::vector<int64_t>{2, 4, 5, 6, 7}));
}

// The same, and the next save has a higher number than the unreadable step.
TEST_F(CheckpointerTest, AStepRecordsItsDescent) {
  Train({.tp = 2, .pp = 1, .dp = 1}, 0, 6);
  const std::string shard = JoinPath(JoinPath(run_, StepDirName(6)), ShardName(0));
  std::filesystem::rename(shard, dir_ / "aside");
  Train({.tp = 2, .pp = 1, .dp = 1}, 4, 8, {.config = {.save_interval = "8", .keep_last = 1}});
  std::filesystem::rename(dir_ / "aside", shard);
  EXPECT_EQ(*ListCurrentSteps(FileSystem::Posix(), run_), (std::vector<int64_t>{2, 4, 8}));
  const auto origin = [&](int64_t step) {
    return ReadManifest(FileSystem::Posix(), JoinPath(run_, StepDirName(step)))->descent.origin;
  };
  EXPECT_EQ(origin(2), std::nullopt);
  EXPECT_EQ(origin(6)->step, 4);
  EXPECT_EQ(origin(8)->step, 4);
  Train({.tp = 2, .pp = 1, .dp = 1}, 8, 10, {.config = {.keep_last = 1}});
  EXPECT_EQ(*ListSteps(FileSystem::Posix(), run_), (std::vector<int64_t>{8, 10}));
}

// A rank loses its local directory, and the run directory its newest steps.
TEST_F(CheckpointerTest, LocalStepsAreRebuiltFromOtherRanks) {
  const Topology topology{.tp = 2, .pp = 1, .dp = 2, .zero = 1};
  const CheckpointerOptions options{.config = {.save_interval = "4",
                                               .save_local = dir_ / "local-{rank}",
                                               .save_local_interval = 1,
                                               .redundancy = "xor:4"}};
  Train(topology, 0, 6, options);
  for (const char* step : {"step-00000004", "step-00000006"})
    std::filesystem::remove_all(JoinPath(run_, step));
  std::filesystem::remove_all(dir_ / "local-2");
  Train(topology, 6, 8, options);
  ExpectStep(6);
  ExpectStep(8);
}

// The nodes have steps 5 and 6, and the run only 4, from which a training without local steps continues.
TEST_F(CheckpointerTest, LocalStepsAreGivenUpByATrainingThatCannotSeeThem) {
  const Topology topology{.tp = 1, .pp = 1, .dp = 2, .zero = 1};
  const CheckpointerOptions options{.config = {.save_interval = "4",
                                               .save_local = dir_ / "local-{rank}",
                                               .save_local_interval = 1,
                                               .redundancy = "xor:2"}};
  Train(topology, 0, 6, options);
  std::filesystem::remove_all(JoinPath(run_, "step-00000006"));
  Train(topology, 4, 5, {.config = {.save_interval = "4"}});
  Train(topology, 5, 6, options);
  ExpectStep(6);
  EXPECT_EQ(*ListCurrentSteps(FileSystem::Posix(), run_), (std::vector<int64_t>{4, 5, 6}));
}

// One of two ranks has lost its directory, and the other has the step of a later training that went back.
// Neither its shard nor its parity belongs to the step of the others.
TEST_F(CheckpointerTest, StaleParityIsNotUsedForARewrittenStep) {
  const Topology topology{.tp = 2, .pp = 1, .dp = 2, .zero = 1};
  const CheckpointerOptions options{.config = {.save_interval = "4",
                                               .save_local = dir_ / "local-{rank}",
                                               .save_local_interval = 2,
                                               .redundancy = "rs:4,2"}};
  Train(topology, 0, 4, options);
  other_ = 10;
  Train(topology, 4, 6, options);
  other_ = 0;
  std::vector<std::string> written;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path()))
    if (entry.path().filename() == "step-00000006") written.push_back(entry.path());
  ASSERT_EQ(written.size(), 5u);
  std::string place;  // of rank 1's
  for (const std::string& step : written)
    if (step.find("local-1") != step.npos)
      std::filesystem::rename(place = step, dir_ / "kept");
    else
      std::filesystem::remove_all(step);
  Train(topology, 4, 6, options);
  std::filesystem::remove_all(JoinPath(run_, "step-00000006"));
  std::filesystem::remove_all(dir_ / "local-2");
  std::filesystem::remove_all(place);
  std::filesystem::rename(dir_ / "kept", place);
  Train(topology, 6, 8, options);
  ExpectStep(8);
}

TEST(LocalRetentionTest, CountsHealthySteps) {
  const auto steps = [](const std::vector<int64_t>& numbers, const std::vector<int64_t>& bad) {
    std::vector<StepFacts> facts;
    for (const int64_t step : numbers)
      facts.push_back({.step = step, .unhealthy = std::ranges::count(bad, step) > 0 ? "bad" : ""});
    return facts;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(LocalStepsToRetire(steps({2, 4, 6}, {}), 2), Steps({2}));
  EXPECT_EQ(LocalStepsToRetire(steps({2, 4, 6, 8}, {6, 8}), 2), Steps());
  EXPECT_EQ(LocalStepsToRetire(steps({2, 4, 6, 8}, {6}), 2), Steps({2, 6}));
  std::vector<StepFacts> back = steps({2, 4, 6}, {});  // it went back from 6 and saved another 4
  back[2].lineage = Lineage::kSuperseded;
  EXPECT_EQ(LocalStepsToRetire(back, 1), Steps({2, 6}));
  EXPECT_EQ(LocalStepsToRetire(steps({2, 4}, {2, 4}), 1), Steps());
  EXPECT_EQ(LocalStepsToRetire(steps({2, 4, 6, 8, 10}, {4, 10}), 1), Steps({2, 4, 6}));
  EXPECT_EQ(LocalStepsToRetire({}, 1), Steps());
}

}  // namespace
}  // namespace cairn
