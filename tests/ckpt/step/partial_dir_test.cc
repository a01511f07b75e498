#include "ckpt/step/partial_dir.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/run/run_dir.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class PartialDirTest : public testing::Test {
 protected:
  static bool Exists(const std::string& path) { return stdfs::exists(path); }
  std::string Leave(const std::string& name) const {
    stdfs::create_directories(dir_ / name);
    std::ofstream(dir_ / name + "/half") << "half";
    return dir_ / name;
  }

  FileSystem& fs_ = FileSystem::Posix();
  const TempDir dir_{TempDir::Place::kMemory};
};

TEST_F(PartialDirTest, NothingIsMadeInACommittedStep) {
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
    EXPECT_FALSE(PartialDir::MakeFor(fs_, place + "/new").ok()) << place;
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

TEST_F(PartialDirTest, WhatKilledProcessesLeftGoes) {
  const std::string abandoned = Leave("out.partial-01234567");
  const std::string others[] = {Leave("out.partial-notes"), Leave("output.partial-01234567"),
                                Leave("out.partial-0123456789")};
  const auto live = PartialDir::MakeFor(fs_, dir_ / "out");
  ASSERT_TRUE(live.ok());
  EXPECT_FALSE(Exists(abandoned));
  for (const std::string& other : others) EXPECT_TRUE(Exists(other)) << other;
  auto second = PartialDir::MakeFor(fs_, dir_ / "out");
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(Exists(live->path()));  // its process lives
  ASSERT_TRUE(second->Publish().ok());
  EXPECT_TRUE(Exists(dir_ / "out"));
  // A save of a training looks like this; its run's lock says whether it lives.
  const std::string save = Leave("step-00000010.partial-01234567");
  ASSERT_TRUE(PartialDir::MakeFor(fs_, dir_ / "step-00000010").ok());
  EXPECT_TRUE(Exists(save));
}

TEST_F(PartialDirTest, ASignalTakesAllThatWasNotPublished) {
  const auto ended = [&] {
    auto published = PartialDir::MakeFor(fs_, dir_ / "done");
    if (!published.ok() || !published->Publish().ok()) ::_exit(2);
    const auto partial = PartialDir::MakeFor(fs_, dir_ / "deep/new/out");
    if (!partial.ok()) ::_exit(3);
    std::ofstream(partial->path() + "/half") << "half";
    RemovePartialDirs();
    ::_exit(Exists(dir_ / "done") && !Exists(dir_ / "deep") ? 0 : 4);
  };
  EXPECT_EXIT(ended(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cairn
