#include "runtime/control/request_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(SaveNowFileTest, RequestsASaveUntilServedThenIsRemoved) {
  TempDir dir;
  SaveNowFile file(dir / "now");
  EXPECT_FALSE(file.Asks());
  for (int round = 0; round < 2; ++round) {
    std::ofstream(dir / "now") << "";
    EXPECT_TRUE(file.Asks());
    EXPECT_TRUE(file.Asks());
    file.Served();
    EXPECT_FALSE(std::filesystem::exists(dir / "now"));
    EXPECT_FALSE(file.Asks());
  }
}

// It used to ask at every iteration.
TEST(SaveNowFileTest, AFileThatCannotBeRemovedRequestsOneSave) {
  TempDir dir;
  SaveNowFile file(dir / "now");
  for (int round = 0; round < 2; ++round) {
    std::filesystem::create_directory(dir / "now");
    EXPECT_TRUE(file.Asks());
    testing::internal::CaptureStderr();
    file.Served();
    EXPECT_FALSE(file.Asks());
    file.Served();
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("--save-now-file " + (dir / "now")), std::string::npos);
    EXPECT_EQ(std::ranges::count(said, '\n'), 1);
    EXPECT_FALSE(file.Asks());
    std::filesystem::remove(dir / "now");
    EXPECT_FALSE(file.Asks());
  }
}

TEST(SaveNowFileTest, AnEmptyPathRequestsNothing) { EXPECT_FALSE(SaveNowFile("").Asks()); }

}  // namespace
}  // namespace cairn
