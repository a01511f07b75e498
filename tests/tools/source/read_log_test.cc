#include "tools/source/read_log.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using Names = std::vector<std::string>;

TEST(ReadLog, ListsUnreadFilesButNotOtherSteps) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir(TempDir::Place::kMemory);
  for (const std::string name : {"latest", "README.md", "global_step5/a.pt", "global_step5/rng.pt",
                                 "global_step10/a.pt", "original/params.json"}) {
    ASSERT_TRUE(MakeDirs(fs, dir / name.substr(0, name.find('/') + 1)).ok());
    ASSERT_TRUE(WriteSmallFile(fs, dir / name, "x").ok());
  }
  ReadLog log(fs);
  EXPECT_EQ(log.Unread(dir.path()),
            (Names{"README.md", "latest", "global_step10/", "global_step5/", "original/"}));
  ASSERT_TRUE(log.OpenForRead(dir / "latest", Direct::kOff).ok());
  ASSERT_TRUE(log.OpenForRead(dir / "./global_step5//a.pt", Direct::kOff).ok());
  EXPECT_EQ(log.Unread(dir.path() + "/"), (Names{"README.md", "global_step5/rng.pt", "original/"}));
}

}  // namespace
}  // namespace cairn
