#include <gtest/gtest.h>

#include "convert/transfer/transfer.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/overtaking_file_system.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

// Tries the run directory's lock when the directory of a step is made; may fail that.
class LockProbe final : public WrappedFileSystem {
 public:
  LockProbe(std::string run_dir, bool fails)
      : WrappedFileSystem(Fs()), run_dir_(std::move(run_dir)), fails_(fails) {}
  int made = 0, unlocked = 0;

 private:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind != FsCall::Kind::kMakeDir || !call.path.starts_with(run_dir_ + "/step-")) return run();
    ++made;
    unlocked += RunLock::Take(FileSystem::Posix(), run_dir_).ok();
    return fails_ ? IoError("no directory") : run();
  }

  const std::string run_dir_;
  const bool fails_;
};

TEST(StepWriter, TakesTheLockBeforeItMakesAnything) {
  const TempDir dir(TempDir::Place::kMemory);
  ASSERT_TRUE(MakeStep(Fs(), dir / "run", RecipeOf({.layers = 1, .vocab = 13}, {})).ok());
  for (const bool fails : {true, false}) {
    LockProbe fs(dir / "out", fails);
    const auto source = Open(dir / "run");
    EXPECT_EQ(Strip(fs, *source, dir / "out", {.format = FindSystem("native")}).ok(), !fails);
    EXPECT_EQ(fs.made, 1);
    EXPECT_EQ(fs.unlocked, 0);
    EXPECT_EQ(Fs().Stat(dir / "out").ok(), !fails);  // a directory that it made goes with it
  }
}

TEST(StepWriter, KeepsADirectoryThatAnotherProcessCreated) {
  const TempDir dir(TempDir::Place::kMemory);
  ASSERT_TRUE(MakeStep(Fs(), dir / "run", RecipeOf({.layers = 1, .vocab = 13}, {})).ok());
  OvertakingFileSystem fs(Fs(), dir / "out");
  EXPECT_FALSE(Strip(fs, *Open(dir / "run"), dir / "out", {.format = FindSystem("native")}).ok());
  EXPECT_TRUE(Fs().Stat(dir / "out/theirs").ok());
}

}  // namespace
}  // namespace cairn
