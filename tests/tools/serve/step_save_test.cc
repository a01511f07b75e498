// The figure for the room of a directory is for a warning: a save does not depend on it.
#include "tools/serve/step_save.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

class UnmeasuredFileSystem final : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    return call.kind == FsCall::Kind::kFreeBytes ? IoError("statvfs: no such call") : run();
  }
};

TEST(HeldRunsTest, ADirectoryThatCannotBeMeasuredIsHeld) {
  const TempDir dir;
  UnmeasuredFileSystem fs(FileSystem::Posix());
  HeldRuns runs;
  const Status held = runs.Hold(fs, dir / "run", [] { return std::chrono::seconds(0); });
  ASSERT_TRUE(held.ok()) << held.message();
  const auto run = runs.At(dir / "run");
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_TRUE((*run)->limits.empty());
}

}  // namespace
}  // namespace cairn
