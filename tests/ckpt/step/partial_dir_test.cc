#include "ckpt/step/partial_dir.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "ckpt/run/run_dir.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class PartialDirTest : public testing::Test {
 protected:
  static bool Exists(const std::string& path) { return stdfs::exists(path); }
  void Leave(const std::string& name) const { stdfs::create_directories(dir_ / name); }
  void Touch(const std::string& name, const char* text = "x") const { std::ofstream(dir_ / name) << text; }
  void Mark(const std::string& name, const MarkedContents& contents) const {
    ASSERT_TRUE(MakeMarkedDir(fs_, dir_ / name, contents).ok());
  }
  static std::string Name(const PartialDir& partial) { return stdfs::path(partial.path()).filename(); }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : stdfs::directory_iterator(dir_.path())) names.insert(entry.path().filename());
    return names;
  }

  const MarkedContents kFiles{.files = {"made"}};
  FileSystem& fs_ = FileSystem::Posix();
  const TempDir dir_{TempDir::Place::kMemory};
};

TEST_F(PartialDirTest, RefusesToWriteIntoACommittedStep) {
  const std::string run = dir_ / "run", step = JoinPath(run, StepDirName(10));
  stdfs::create_directory(run);
  ASSERT_TRUE(MakeStep(fs_, run, {.step = 10}).ok());
  stdfs::create_directory_symlink(step, dir_ / "link");
  for (const std::string& place :
       {step, step + "/a/b", dir_ / "link", dir_ / "link/new", run + "/x/../step-00000010/y"}) {
    EXPECT_EQ(CheckOutsideSteps(fs_, place).kind(), StatusKind::kInvalidArgument) << place;
    EXPECT_FALSE(MakeOutputDir(fs_, place).ok()) << place;
    EXPECT_FALSE(CheckFreeSpace(fs_, place, 0).ok()) << place;
    EXPECT_FALSE(RunLock::Take(FileSystem::Posix(), place).ok()) << place;
    EXPECT_FALSE(PartialDir::MakeFor(fs_, place + "/new", kFiles).ok()) << place;
  }
  EXPECT_FALSE(Exists(step + "/a") || Exists(step + "/.lock"));
  EXPECT_TRUE(CheckOutsideSteps(fs_, run + "/step-00000011").ok());
  // Saved again: the new step has the name, the superseded one is still a step.
  stdfs::rename(step, JoinPath(run, SupersededDirName(10, "ab")));
  EXPECT_FALSE(CheckOutsideSteps(fs_, JoinPath(run, SupersededDirName(10, "ab")) + "/x").ok());
  // Other programs have a manifest.json, too.
  stdfs::create_directory(dir_ / "web");
  std::ofstream(dir_ / "web/manifest.json") << R"({"name": "an app"})";
  EXPECT_TRUE(CheckOutsideSteps(fs_, dir_ / "web/out").ok());
}

TEST_F(PartialDirTest, RemovesLeftoversOfKilledProcesses) {
  Leave("out.partial-01234567");
  Touch("out.partial-01234567/made");
  Mark("out.partial-01234567", {.files = {"made", "sub/never"}});
  ASSERT_TRUE(
      WriteMark(fs_, dir_ / "out.partial-89abcdef", {}).ok());  // it was killed before it made the directory
  Touch("out.partial-89abcde0.cairn-mark", "");
  Leave("out");  // a run directory that a command made
  Mark("out", {.run = true});
  Touch("out/.lock");
  Leave("out/step-00000010.partial-0a");
  Mark("out/step-00000010.partial-0a", {.step = true});
  for (const char* file : {"shard-00000.h5", "manifest.json", "unit-00000-00000.done"})
    Touch(std::string("out/step-00000010.partial-0a/") + file);
  const auto live = PartialDir::MakeFor(fs_, dir_ / "out", kFiles);
  ASSERT_TRUE(live.ok()) << live.status().message();
  EXPECT_EQ(Names(), (std::set<std::string>{Name(*live), Name(*live) + ".cairn-mark"}));
  auto second = PartialDir::MakeFor(fs_, dir_ / "out", kFiles);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(Exists(live->path()));  // its process lives
  ASSERT_TRUE(second->Publish().ok());
  EXPECT_EQ(Names(), (std::set<std::string>{"out", Name(*live), Name(*live) + ".cairn-mark"}));
}

TEST_F(PartialDirTest, KeepsAndReportsDirectoriesWithoutAMark) {
  const std::string theirs[] = {"out.partial-20261127", "out.partial-01234567", "out.partial-89abcdef"};
  for (const std::string& name : theirs) {
    Leave(name);
    Touch(name + "/made");
  }
  Mark("out.partial-01234567", {.files = {"made"}});
  stdfs::copy_file(MarkPath(dir_ / theirs[1]), MarkPath(dir_ / theirs[2]));  // another directory's
  stdfs::remove(MarkPath(dir_ / theirs[1]));
  for (const char* name : {"out.partial-notes", "output.partial-01234567", "out.partial-0123456789"})
    Leave(name);
  const std::set<std::string> before = Names();
  testing::internal::CaptureStderr();
  RemoveLeftovers(fs_, dir_ / "out");
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(Names(), before);
  EXPECT_EQ(std::ranges::count(told, '\n'), 3) << told;
  for (const std::string& name : theirs) {
    EXPECT_TRUE(Exists(dir_ / name + "/made"));
    EXPECT_NE(told.find(dir_ / name + " looks like"), std::string::npos) << told;
  }
}

TEST_F(PartialDirTest, FilesOfOthersStay) {
  testing::internal::CaptureStderr();
  {
    const auto partial = PartialDir::MakeFor(fs_, dir_ / "out", {.files = {"made", "sub/made", "sub/"}});
    ASSERT_TRUE(partial.ok());
    Leave(Name(*partial) + "/sub");
    for (const char* file : {"/made", "/sub/made", "/sub/theirs"}) Touch(Name(*partial) + file);
  }
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("/sub/theirs was not written by Cairn"), std::string::npos) << told;
  ASSERT_EQ(Names().size(), 2u);  // with its mark: once the file is removed, the directory is removed too
  const std::string left = *Names().begin();
  EXPECT_TRUE(Exists(dir_ / left + "/sub/theirs"));
  EXPECT_FALSE(Exists(dir_ / left + "/made") || Exists(dir_ / left + "/sub/made"));
  stdfs::rename(dir_ / left + "/sub/theirs", dir_ / "theirs");
  RemoveLeftovers(fs_, dir_ / "out");
  EXPECT_EQ(Names(), std::set<std::string>{"theirs"});
}

TEST_F(PartialDirTest, FollowsNoLinksAndNoPathsThatLeadOutside) {
  Leave("elsewhere");
  Touch("elsewhere/made");
  Leave("out.partial-01234567");
  stdfs::create_directory_symlink(dir_ / "elsewhere", dir_ / "out.partial-01234567/sub");
  Mark("out.partial-01234567", {.files = {"sub/made"}});
  stdfs::create_directory_symlink(dir_ / "elsewhere", dir_ / "out.partial-89abcdef");
  Mark("out.partial-89abcdef", {.files = {"made"}});
  Leave("out.partial-00000000");
  ASSERT_TRUE(WriteMark(fs_, dir_ / "out.partial-00000000", {.files = {"../elsewhere/made"}},
                        FactsOf(fs_, dir_ / "out.partial-00000000").value())
                  .ok());
  testing::internal::CaptureStderr();
  RemoveLeftovers(fs_, dir_ / "out");
  EXPECT_NE(testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(Exists(dir_ / "elsewhere/made"));
}

// The kind: a mark, which is a file that anybody can write, copy, move or unpack, gives a right that its
// maker did not have.
class MarkTest : public PartialDirTest {
 protected:
  static constexpr const char* kPartial = "out.partial-01234567";
  void Put(const std::string& name) const {
    Leave(name);
    for (const char* file : {"/made", "/manifest.json", "/.lock"}) Touch(name + file);
  }
  // Whatever runs next beside it, in it or above it removes nothing of `name`.
  void ExpectStays(const std::string& name) const {
    const auto left = [](const Status&) {};
    testing::internal::CaptureStderr();
    RemoveLeftovers(fs_, dir_ / "out");
    RemoveLeftovers(fs_, dir_ / name);
    EXPECT_TRUE(CleanLeftovers(fs_, dir_.path(), left).ok());
    testing::internal::GetCapturedStderr();
    for (const char* file : {"/made", "/manifest.json", "/.lock"})
      EXPECT_TRUE(Exists(dir_ / name + file)) << name << file;
  }
};

TEST_F(MarkTest, NextToAFinalNameItCountsOnlyForARunDirectoryAndListsNoFiles) {
  Put("out");
  for (const MarkedContents& contents :
       {kFiles, MarkedContents{.step = true}, MarkedContents{.run = true, .files = {"made"}},
        MarkedContents{.step = true, .run = true}, MarkedContents{.run = true}}) {
    Mark("out", contents);
    ExpectStays("out");
    stdfs::remove(MarkPath(dir_ / "out"));
  }
  Put("step-00000010");  // a committed step
  Mark("step-00000010", {.step = true});
  ExpectStays("step-00000010");
}

TEST_F(MarkTest, IsBoundToTheDirectoryThatItWasMadeFor) {
  Put("out.partial-89abcdef");
  Mark("out.partial-89abcdef", kFiles);
  // A tree that was copied or restored with its marks.
  for (const char* copy : {"copy", "copy/run"}) {
    Leave(copy);
    stdfs::copy(dir_ / "out.partial-89abcdef", dir_ / copy + "/out.partial-89abcdef");
    stdfs::copy(MarkPath(dir_ / "out.partial-89abcdef"), MarkPath(dir_ / copy + "/out.partial-89abcdef"));
    testing::internal::CaptureStderr();
    RemoveLeftovers(fs_, dir_ / copy + "/out");
    EXPECT_NE(testing::internal::GetCapturedStderr().find("its mark was made for another directory"),
              std::string::npos);
    EXPECT_TRUE(Exists(dir_ / copy + "/out.partial-89abcdef/made"));
  }
  // Its directory was moved away, and somebody made one of its name.
  stdfs::rename(dir_ / "out.partial-89abcdef", dir_ / "mine");
  Put("out.partial-89abcdef");
  ExpectStays("out.partial-89abcdef");
  // Somebody made the directory after a command had written its mark, and was killed.
  ASSERT_TRUE(WriteMark(fs_, dir_ / kPartial, kFiles).ok());
  Put(kPartial);
  ExpectStays(kPartial);
  // A step that is being deleted has its mark before it has its name.
  ASSERT_TRUE(
      WriteMark(fs_, dir_ / "step-00000010.deleting-1a", kFiles, FactsOf(fs_, dir_ / "mine").value()).ok());
  Put("step-00000010.deleting-1a");
  ExpectStays("step-00000010.deleting-1a");
}

TEST_F(MarkTest, AKillBetweenMkdirAndBindingLeavesADirectoryThatCanBeRemoved) {
  for (const size_t digits : {size_t{0}, size_t{7}, size_t{39}}) {  // of the binding were written
    Mark(kPartial, kFiles);
    std::string text = ReadSmallFile(fs_, MarkPath(dir_ / kPartial), 1000).value();
    text.replace(13 + digits, 40 - digits, 40 - digits, '-');
    std::ofstream(MarkPath(dir_ / kPartial)) << text;
    RemoveLeftovers(fs_, dir_ / "out");
    EXPECT_TRUE(Names().empty());
  }
}

TEST_F(MarkTest, BelongsToTheOwnerOfTheDirectoryAndToTheCaller) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, which can give a file away";
  const auto give = [&](const std::string& path) { ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0); };
  Put(kPartial);
  Mark(kPartial, kFiles);
  give(MarkPath(dir_ / kPartial));  // another user's mark of my directory
  ExpectStays(kPartial);
  give(dir_ / kPartial);  // and of that user's own directory, into which my file was moved
  ExpectStays(kPartial);
  stdfs::remove_all(dir_ / kPartial);
  testing::internal::CaptureStderr();
  RemoveLeftovers(fs_, dir_ / "out");
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(Names(), std::set<std::string>{std::string(kPartial) + ".cairn-mark"});
}

// The kind: a directory that is being written is taken for a leftover. Each way to RemoveMarked() asks for
// the locks.
TEST_F(MarkTest, ADirectoryThatIsBeingWrittenIsNotALeftover) {
  const std::string run = dir_ / "run";
  Leave("run");
  Mark("run", {.run = true});  // a command that made the run was killed
  std::vector<PartialDir> live;
  for (const char* place : {"/export", "/step-00000009", "/deep/export"}) {
    Result<PartialDir> made = PartialDir::MakeFor(fs_, run + place, kFiles);
    ASSERT_TRUE(made.ok());
    std::ofstream(made->path() + "/made") << "half";
    live.push_back(std::move(*made));
  }
  const auto expect_all = [&](const char* after) {
    for (const PartialDir& made : live) EXPECT_TRUE(Exists(made.path() + "/made")) << after << made.path();
  };
  RemoveLeftovers(fs_, run);
  expect_all("the next command with the same DST: ");
  RemoveLeftovers(fs_, run + "/step-00000009");
  expect_all("the next command with RUN/step-N: ");
  {
    ASSERT_TRUE(RunLock::Hold(fs_, run, [](const Status&) {}).ok());
  }
  expect_all("a training: ");
  EXPECT_FALSE(Exists(MarkPath(run)));  // the run is the training's now
  Mark("run", {.run = true});
  EXPECT_TRUE(RemoveMarked(fs_, run, LocksHeld::kAll).ok());
  expect_all("the command that made RUN, and failed: ");
  for (PartialDir& made : live) EXPECT_TRUE(made.Publish().ok());
  EXPECT_TRUE(Exists(run + "/export/made") && Exists(run + "/step-00000009/made"));
}

// A training holds the lock of its run, and no lock on the steps that it saves.
TEST_F(PartialDirTest, ASaveOfALiveTrainingStays) {
  Leave("step-00000010.partial-01234567");
  Mark("step-00000010.partial-01234567", {.step = true});
  {
    const auto training = RunLock::Take(FileSystem::Posix(), dir_.path());
    ASSERT_TRUE(training.ok());
    RemoveLeftovers(fs_, dir_ / "step-00000010");
    EXPECT_TRUE(Exists(dir_ / "step-00000010.partial-01234567"));
  }
  RemoveLeftovers(fs_, dir_ / "step-00000010");
  EXPECT_EQ(Names(), std::set<std::string>{".lock"});
}

TEST_F(PartialDirTest, DoesNotReplaceAFileThatAppearedLater) {
  for (const char* part : {"", "made"}) {
    auto partial = PartialDir::MakeFor(fs_, dir_ / "out", kFiles);
    ASSERT_TRUE(partial.ok());
    Touch(Name(*partial) + "/made");
    if (*part == 0)
      Leave("out");  // rename() would take its place
    else
      Touch("out");
    EXPECT_EQ(partial->Publish(part).kind(), StatusKind::kAlreadyExists);
    EXPECT_FALSE(Exists(dir_ / "out/made"));
    stdfs::remove(dir_ / "out");
    ASSERT_TRUE(partial->Publish(part).ok());
    EXPECT_TRUE(Exists(dir_ / (*part == 0 ? "out/made" : "out")));
    stdfs::remove_all(dir_ / "out");
  }
  EXPECT_TRUE(Names().empty());
}

TEST_F(PartialDirTest, ASignalRemovesUnpublishedFiles) {
  const auto ended = [&] {
    auto published = PartialDir::MakeFor(fs_, dir_ / "done", kFiles);
    if (!published.ok() || !published->Publish().ok()) ::_exit(2);
    const auto partial = PartialDir::MakeFor(fs_, dir_ / "deep/new/out", kFiles);
    if (!partial.ok()) ::_exit(3);
    std::ofstream(partial->path() + "/made") << "half";
    RemovePartialDirs();
    ::_exit(Exists(dir_ / "done") && !Exists(dir_ / "deep") ? 0 : 4);
  };
  EXPECT_EXIT(ended(), testing::ExitedWithCode(0), "");
}

// A thread that still writes must not put a file into a directory that a file of others keeps.
TEST_F(PartialDirTest, AfterASignalNoOtherThreadMakesFiles) {
  const auto ended = [&] {
    const auto partial = PartialDir::MakeFor(fs_, dir_ / "out", {.step = true});
    if (!partial.ok()) ::_exit(2);
    const std::string path = partial->path();
    std::ofstream(path + "/theirs") << "precious";
    std::atomic<int> made = 0;
    std::thread([&] {
      for (;; ++made) {
        (void)WriteSmallFile(fs_, path + "/team-file", "{}");
        (void)fs_.Rename(path + "/team-file", path + "/manifest.json");
      }
    }).detach();
    while (made == 0) std::this_thread::yield();
    RemovePartialDirs();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::_exit(fs_.List(path).value() == std::vector<std::string>{"theirs"} ? 0 : 3);
  };
  EXPECT_EXIT(ended(), testing::ExitedWithCode(0), "theirs was not written by Cairn");
}

}  // namespace
}  // namespace cairn
