// Exported directories are sealed: they have the files of each system, at some topology.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "convert/formats/systems.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/restore.h"
#include "tools/place/finished.h"
#include "tools/place/place.h"
#include "tools/place/step_files.h"
#include "tools/seal/seal_check.h"
#include "tools/seal/seal_record.h"
#include "tools/seal/sealer.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

FileSystem& Disk() { return FileSystem::Posix(); }

void SetTime(const std::string& path, int64_t unix_seconds) {
  const timespec time{.tv_sec = unix_seconds, .tv_nsec = 0};
  const timespec times[2] = {time, time};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0) << path;
}

void WriteText(const std::string& path, const std::string& text) {
  stdfs::create_directories(stdfs::path(path).parent_path());
  std::ofstream(path) << text;
}

SealOptions Now() { return {.open = {}, .quiet_seconds = 0}; }

class SealTest : public testing::Test {
 protected:
  // A run of another system, and its one step.
  FoundStep Make(const std::string& format, const std::string& name = "run") {
    const bool universal = format == "universal";  // fp32 values only
    StepRecipe recipe = RecipeOf({}, {.tp = 2});
    recipe.weights = universal ? Dtype::kF32 : Dtype::kBF16;
    recipe.packed = recipe.split_master = !universal;  // weights are their masters rounded
    EXPECT_TRUE(MakeStep(Fs(), dir_ / ("native-" + name), recipe).ok());
    Topology topology{.tp = 2, .pp = 2, .dp = 2};
    topology.zero = universal || format == "dcp" ? 0 : 1;
    const auto made = Export(Fs(), *Open(dir_ / ("native-" + name)), *FindSystem(format), dir_ / name,
                             {.target = {.topology = topology, .dtype = {}}, .writer = {}});
    EXPECT_TRUE(made.ok()) << made.status().message();
    const auto steps = StepsToSeal(Disk(), dir_ / name);
    EXPECT_TRUE(steps.ok() && steps->size() == 1) << format;
    if (!steps.ok() || steps->empty()) return {};
    return steps->front();
  }

  SealResult Sealed(const FoundStep& step, const SealOptions& options = Now()) {
    Result<SealResult> result = SealForeignStep(Disk(), step, options);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return *std::move(result);
  }

  // The first problem; empty if there is none.
  std::string FirstProblem(const FoundStep& step, SealDepth depth = SealDepth::kAll) {
    const auto seal = ReadSeal(Disk(), step.path);
    EXPECT_TRUE(seal.ok()) << seal.status().message();
    const SealReport report = CheckSeal(Disk(), step.path, *seal, depth);
    return report.problems.empty() ? "" : report.problems[0].file + ": " + report.problems[0].what;
  }

  TempDir dir_{TempDir::Place::kMemory};
};

class SealedSystemTest : public SealTest, public testing::WithParamInterface<const char*> {};

TEST_P(SealedSystemTest, NamesDamagedFiles) {
  const FoundStep step = Make(GetParam());
  const SealResult result = Sealed(step);
  ASSERT_EQ(result.outcome, SealOutcome::kSealed)
      << result.unfinished << (result.problems.empty() ? "" : ToString(result.problems[0]));
  EXPECT_TRUE(result.seal.untold.empty()) << result.seal.untold[0];
  EXPECT_NE(result.seal.whole.back().find("every element covered once"), std::string::npos);
  EXPECT_EQ(FirstProblem(step), "");
  EXPECT_TRUE(OpenForeign(Disk(), step.path).ok());  // the seal disturbs no reader
  const size_t stride = 1 + result.seal.files.size() / 8;
  for (size_t i = 0; i < result.seal.files.size(); i += stride) {
    const SealedFile& file = result.seal.files[i];
    SCOPED_TRACE(file.name);
    const std::string path = JoinPath(step.path, file.name);
    const std::string before = BytesOf(path);
    FlipByte(path, file.bytes / 2);
    SetTime(path, file.modified_unix_seconds);
    EXPECT_EQ(FirstProblem(step, SealDepth::kLook), "");  // listing reads nothing
    EXPECT_EQ(FirstProblem(step), path + ": its bytes are not those that were sealed");
    stdfs::resize_file(path, file.bytes - 1);
    EXPECT_EQ(FirstProblem(step, SealDepth::kLook),
              fmt::format("{}: has {} bytes; {} were sealed", path, file.bytes - 1, file.bytes));
    stdfs::remove(path);
    EXPECT_EQ(FirstProblem(step, SealDepth::kLook),
              fmt::format("{}: is missing; {} bytes were sealed", path, file.bytes));
    WriteText(path, before);
    SetTime(path, 1000);
    EXPECT_EQ(FirstProblem(step, SealDepth::kTouched), "");  // of another time, and therefore read
    EXPECT_EQ(CheckSeal(Disk(), step.path, result.seal, SealDepth::kLook).touched, std::vector{path});
    SetTime(path, file.modified_unix_seconds);
  }
  WriteText(step.path + "/added.txt", "new");
  EXPECT_EQ(FirstProblem(step), step.path + "/added.txt: was added after the seal");
}

TEST_P(SealedSystemTest, RefusesAStepThatLacksAFileOrItsEnd) {
  const FoundStep step = Make(GetParam());
  const auto files = ListStepFiles(Disk(), step.path);
  ASSERT_TRUE(files.ok());
  const size_t stride = 1 + files->size() / 24;  // a universal checkpoint has hundreds
  for (size_t i = 0; i < files->size(); i += stride) {
    const StepFile& file = (*files)[i];
    // These are not needed, or other versions do not write them.
    const std::string name = file.name.substr(FolderOf(file.name).size());
    if (name == "cairn.json" || name == "common.pt" || name == "optimizer_state.pt" ||
        name.starts_with("latest"))
      continue;
    SCOPED_TRACE(file.name);
    const std::string path = JoinPath(step.path, file.name);
    stdfs::rename(path, dir_ / "away");
    EXPECT_NE(Sealed(step).outcome, SealOutcome::kSealed);
    stdfs::rename(dir_ / "away", path);
    const std::string before = BytesOf(path);
    stdfs::resize_file(path, file.bytes - 3);
    EXPECT_NE(Sealed(step).outcome, SealOutcome::kSealed);
    EXPECT_FALSE(ReadSeal(Disk(), step.path).ok());
    WriteText(path, before);
  }
  EXPECT_EQ(Sealed(step).outcome, SealOutcome::kSealed);
}

TEST_P(SealedSystemTest, AFailureLeavesNoSealOrACompleteOne) {
  const FoundStep step = Make(GetParam());
  FaultyFileSystem faulty(Disk());
  ASSERT_TRUE(SealForeignStep(faulty, step, Now()).ok());
  const int64_t operations = faulty.operations();
  int without = 0;
  for (int64_t budget = 0; budget < operations;
       budget += budget + 20 < operations ? 1 + operations / 40 : 1) {
    stdfs::remove(JoinPath(step.path, kSealName));
    faulty.SetBudget(faulty.operations() + budget);
    (void)SealForeignStep(faulty, step, Now());
    without += !ReadSeal(Disk(), step.path).ok();
    if (ReadSeal(Disk(), step.path).ok()) {
      EXPECT_EQ(FirstProblem(step), "") << budget;
    }
  }
  EXPECT_GT(without, 20);
  EXPECT_EQ(Sealed(step).outcome, SealOutcome::kSealed);  // whatever the failures left
  EXPECT_EQ(FirstProblem(step), "");
}

INSTANTIATE_TEST_SUITE_P(Systems, SealedSystemTest,
                         testing::Values("dcp", "megatron", "megatron-deepspeed", "torch-dist", "universal"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_F(SealTest, ComparesRecordsOfTorchFilesWithTheirChecksums) {
  const FoundStep step = Make("megatron-deepspeed");
  const auto files = ListStepFiles(Disk(), step.path);
  const auto largest = std::ranges::max_element(*files, {}, &StepFile::bytes);
  FlipByte(JoinPath(step.path, largest->name), largest->bytes / 2);  // before it is sealed
  const SealResult result = Sealed(step);
  ASSERT_EQ(result.outcome, SealOutcome::kProblems);
  EXPECT_EQ(result.problems[0].file, JoinPath(step.path, largest->name));
  EXPECT_NE(result.problems[0].what.find("CRC-32"), std::string::npos);
  SealOptions anyway = Now();
  anyway.anyway = true;
  ASSERT_EQ(Sealed(step, anyway).outcome, SealOutcome::kSealed);
  EXPECT_EQ(ReadSeal(Disk(), step.path)->problems.size(), 1u);
}

TEST_F(SealTest, TheTrackerShowsWhichStepsAreFinished) {
  const FoundStep step = Make("megatron-deepspeed");
  const std::string tracker = dir_ / "run/latest";
  ASSERT_EQ(*step.step, 100);
  SealOptions strict = Now();
  strict.strict = true;
  stdfs::remove(tracker);
  EXPECT_NE(Sealed(step, strict).unfinished.find("latest does not exist yet"), std::string::npos);
  EXPECT_EQ(Sealed(step).outcome, SealOutcome::kSealed);  // copied without its tracker
  WriteText(tracker, "global_step90");
  SetTime(tracker, 1000);  // before the step's files were written
  EXPECT_NE(Sealed(step, strict).unfinished.find("latest still names global_step90"), std::string::npos);
  SetTime(tracker, std::time(nullptr) + 100);  // the run went back to step 90 after it had written this one
  EXPECT_EQ(Sealed(step, strict).outcome, SealOutcome::kSealed);
  stdfs::create_directory(dir_ / "run/global_step90");
  EXPECT_EQ(*ListForeignSteps(Disk(), dir_ / "run").back().step, 90);  // it is the newest, too
  stdfs::remove(dir_ / "run/global_step90");
  WriteText(tracker, "global_step110");
  SetTime(tracker, 1000);
  EXPECT_EQ(Sealed(step, strict).outcome, SealOutcome::kSealed);
}

TEST_F(SealTest, YoungOrGrowingFilesAreUnfinished) {
  const FoundStep step = Make("dcp");
  SealOptions quiet = Now();
  quiet.quiet_seconds = 3600;
  EXPECT_NE(Sealed(step, quiet).unfinished.find("less than 3600 s ago"), std::string::npos);
  SealOptions growing = Now();
  growing.progress = [&](uint64_t, uint64_t) {  // while it is read
    std::ofstream(step.path + "/.metadata", std::ios::app) << "x";
  };
  const SealResult result = Sealed(step, growing);
  EXPECT_EQ(result.outcome, SealOutcome::kUnfinished);
  EXPECT_EQ(result.unfinished, step.path + "/.metadata changed while it was sealed");
  EXPECT_FALSE(ReadSeal(Disk(), step.path).ok());
  stdfs::remove(step.path + "/.metadata");
  EXPECT_NE(Sealed(step).unfinished.find(".metadata does not exist yet"), std::string::npos);
  std::atomic<bool> stop = true;
  SealOptions stopped = Now();
  stopped.stop = &stop;
  EXPECT_EQ(SealForeignStep(Disk(), Make("dcp", "other"), stopped).status().kind(), StatusKind::kIoError);
  EXPECT_FALSE(ReadSeal(Disk(), dir_ / "other").ok());
}

// cairn.hf saves FSDP's shards as a run in each checkpoint; its lock is emptied when the training ends.
TEST_F(SealTest, TheLockOfARunInAStepIsNotContent) {
  const FoundStep step = Make("dcp");
  stdfs::create_directories(step.path + "/optimizer_0");
  WriteText(step.path + "/optimizer_0/.lock", "{\"host\": \"n1\"}");
  Seal seal = Sealed(step).seal;
  WriteText(step.path + "/optimizer_0/.lock", "");
  EXPECT_EQ(FirstProblem(step), "");
  seal.files.push_back({.name = "optimizer_0/.lock", .bytes = 95});  // as earlier versions sealed it
  ASSERT_TRUE(WriteSealFile(Disk(), step.path, seal).ok());
  EXPECT_EQ(FirstProblem(step), "");
  stdfs::remove_all(step.path + "/optimizer_0");
  EXPECT_EQ(FirstProblem(step), "");
}

TEST_F(SealTest, TransformersWriteTheTrainerStateLast) {
  const std::string run = dir_ / "hf";
  for (const char* step : {"checkpoint-20", "checkpoint-100"}) {
    WriteText(run + "/" + step + "/trainer_state.json", "{}");
    WriteText(run + "/" + step + "/rng_state_0.pth", "x");
    WriteText(run + "/" + step + "/rng_state_1.pth", "x");
  }
  stdfs::create_directories(run + "/runs");
  const auto steps = StepsToSeal(Disk(), run);
  ASSERT_EQ(steps->size(), 2u);
  EXPECT_EQ(*steps->back().step, 100);  // by number, not by name
  EXPECT_EQ(Sealed(steps->back()).outcome, SealOutcome::kSealed);
  stdfs::remove(steps->front().path + "/trainer_state.json");
  EXPECT_NE(Sealed(steps->front()).unfinished.find("trainer_state.json does not exist yet"),
            std::string::npos);
  WriteText(steps->front().path + "/trainer_state.json", "{}");
  stdfs::remove(steps->front().path + "/rng_state_0.pth");
  const SealResult result = Sealed(steps->front());
  ASSERT_EQ(result.outcome, SealOutcome::kProblems);
  EXPECT_EQ(result.problems[0].what, "is missing, but others of its kind exist");
  EXPECT_EQ(StepsToSeal(Disk(), steps->front().path)->size(), 1u);
}

TEST_F(SealTest, NumberedShardsMustHaveNoGap) {
  const std::string model = dir_ / "model";
  WriteText(model + "/pytorch_model-00001-of-00003.bin", "x");
  WriteText(model + "/pytorch_model-00003-of-00003.bin", "x");
  const SealResult result = Sealed({model, std::nullopt});
  ASSERT_EQ(result.outcome, SealOutcome::kProblems);
  EXPECT_EQ(result.problems[0].what, "only 2 of 3 such files exist");
  WriteText(model + "/pytorch_model-00002-of-00003.bin", "");
  EXPECT_EQ(Sealed({model, std::nullopt}).problems[0].what, "is empty");
}

TEST_F(SealTest, NativeStepsNeedNoSeal) {
  ASSERT_TRUE(MakeStep(Disk(), dir_ / "native", RecipeOf({}, {})).ok());
  for (const std::string& path : {dir_ / "native", dir_ / "native/step-00000100"})
    EXPECT_EQ(StepsToSeal(Disk(), path).status().kind(), StatusKind::kNotSupported) << path;
}

TEST_F(SealTest, ArchivesOnlySealedSteps) {
  const FoundStep step = Make("dcp");
  const SealResult result = Sealed(step);
  const Store store(Disk(), dir_ / "store");
  ASSERT_TRUE(MakeDirs(Disk(), dir_ / "store").ok());
  const ArchiveRequest request{{.path = step.path, .native = false}};
  const std::string path = JoinPath(step.path, result.seal.files.back().name);
  FlipByte(path, 0);
  SetTime(path, result.seal.files.back().modified_unix_seconds);
  const auto damaged = Archive(store, request, {}, {});
  EXPECT_EQ(damaged.status().message(),
            path + ": its bytes are not those that were sealed; nothing was stored");
  FlipByte(path, 0);
  WriteText(step.path + "/more.pt", "x");
  EXPECT_NE(Archive(store, request, {}, {}).status().message().find("more.pt: was added after the seal"),
            std::string::npos);
  stdfs::remove(step.path + "/more.pt");
  SetTime(path, result.seal.files.back().modified_unix_seconds);
  const auto stored = Archive(store, request, {}, {});
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  const auto view = OpenMember({store, TarName(stored->record)});
  ASSERT_TRUE(view.ok()) << view.status().message();
  const SealReport report =
      CheckSeal(**view, (*view)->root(), *ReadSeal(**view, (*view)->root()), SealDepth::kAll);
  EXPECT_TRUE(report.problems.empty()) << ToString(report.problems[0]);
  EXPECT_TRUE(report.touched.empty());
}

TEST(SealRecordTest, RefusesEveryChangedByte) {
  Seal seal{.system = "dcp",
            .step = 7,
            .sealed_unix_seconds = 12,
            .whole = {"all"},
            .untold = {"a \\ b"},
            .problems = {},
            .notes = {"no head"},
            .allowed = {"v*"}};
  seal.files = {{"a/b.pt", 3, 5, DigestOf("x")}, {"odd\xff\n", 0, -1, DigestOf("")}};
  const std::string text = EncodeSeal(seal);
  const auto same = DecodeSeal(text);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(*same, seal);
  EXPECT_EQ(UncheckedIn(seal, {"v_head"}), seal.untold);
  EXPECT_TRUE(UncheckedIn(seal, {"unchecked"}).empty());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    EXPECT_FALSE(DecodeSeal(changed).ok()) << i;
    EXPECT_FALSE(DecodeSeal(text.substr(0, i)).ok()) << i;
  }
  for (const char* name : {"../a", "/a", "a//b", "a/..", "", "."}) {
    seal.files = {{name, 0, 0, {}}};
    EXPECT_NE(DecodeSeal(EncodeSeal(seal)).status().message().find("outside of its directory"),
              std::string::npos)
        << name;
  }
}

}  // namespace
}  // namespace cairn
