#include "runtime/log/log_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::string LogContents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

TEST(LogFileTest, AppendsToAnExistingFile) {
  TempDir dir;
  std::ofstream(dir / "l") << "a\n";
  const auto log = LogFile::Open(dir / "l", "l").value();
  log->Add("b\n");
  EXPECT_EQ(LogContents(dir / "l"), "a\n");
  ASSERT_TRUE(log->Write().ok());
  EXPECT_EQ(LogContents(dir / "l"), "a\nb\n");
}

TEST(LogFileTest, LinesWaitForRoomAndStayWhole) {
  TempDir dir;
  const auto log = LogFile::Open(dir / "l", "l").value();
  {
    const FileSizeLimit limit(6);
    log->Add("one\n");
    EXPECT_TRUE(log->Write().ok());
    log->Add("two\n");
    log->Add("three\n");
    EXPECT_FALSE(log->Write().ok());
    EXPECT_FALSE(log->Write().ok());
    EXPECT_EQ(LogContents(dir / "l"), "one\ntw");
  }
  log->Add("four\n");
  ASSERT_TRUE(log->Write().ok());
  EXPECT_EQ(LogContents(dir / "l"), "one\ntwo\nthree\nfour\n");
  EXPECT_EQ(log->lost(), 0);
}

TEST(LogFileTest, WaitingLinesAreBounded) {
  TempDir dir;
  const auto log = LogFile::Open(dir / "l", "l").value();
  const std::string line(LogFile::kMaxPendingBytes / 4, 'x');
  {
    const FileSizeLimit limit(0);
    for (int i = 0; i < 7; ++i) {
      log->Add(line);
      EXPECT_FALSE(log->Write().ok());
    }
  }
  EXPECT_EQ(log->lost(), 3);
  ASSERT_TRUE(log->Write().ok());
  EXPECT_EQ(LogContents(dir / "l").size(), 4 * line.size());
}

TEST(LogFileTest, AFifoNeverBlocks) {
  TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "f").c_str(), 0600), 0);
  EXPECT_FALSE(LogFile::Open(dir / "f", "f").ok());
  const UniqueFd reader(::open((dir / "f").c_str(), O_RDONLY | O_NONBLOCK));
  const auto log = LogFile::Open(dir / "f", "f").value();
  log->Add(std::string(LogFile::kMaxPendingBytes, 'x'));
  EXPECT_FALSE(log->Write().ok());
}

}  // namespace
}  // namespace cairn
