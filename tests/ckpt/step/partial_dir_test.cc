#include "ckpt/step/partial_dir.h"

#include <gtest/gtest.h>

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
    ASSERT_TRUE(WriteMark(fs_, dir_ / name, contents).ok());
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
    EXPECT_FALSE(RunLock::Take(place).ok()) << place;
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
  Mark("out.partial-89abcdef", {});  // it was killed before it made the directory
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
  Mark("out.partial-00000000", {.files = {"../elsewhere/made"}});
  testing::internal::CaptureStderr();
  RemoveLeftovers(fs_, dir_ / "out");
  EXPECT_NE(testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(Exists(dir_ / "elsewhere/made"));
}

// A training holds the lock of its run, and no lock on the steps that it saves.
TEST_F(PartialDirTest, ASaveOfALiveTrainingStays) {
  Leave("step-00000010.partial-01234567");
  Mark("step-00000010.partial-01234567", {.step = true});
  {
    const auto training = RunLock::Take(dir_.path());
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
