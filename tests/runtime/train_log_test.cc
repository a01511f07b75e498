#include "runtime/train_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ckpt/unique_fd.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::string Contents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// Stderr goes into a pipe, which no limit of file sizes holds up, and stdout nowhere.
class Redirected {
 public:
  Redirected() : out_(::dup(STDOUT_FILENO)), err_(::dup(STDERR_FILENO)) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    said_ = UniqueFd(ends[0]);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    const UniqueFd nowhere(::open("/dev/null", O_WRONLY));
    ::dup2(nowhere.get(), STDOUT_FILENO);
  }
  std::string Said() {
    ::dup2(out_.get(), STDOUT_FILENO);
    ::dup2(err_.get(), STDERR_FILENO);
    std::string text(1 << 14, ' ');
    text.resize(std::max<ssize_t>(0, ::read(said_.get(), text.data(), text.size())));
    return text;
  }

 private:
  UniqueFd out_, err_, said_;
};

TrainConfig LoggedTo(const TempDir& dir) {
  TrainConfig config;
  config.log_json = dir / "l";
  config.tensorboard_dir = dir / "t";
  config.log_interval = 2;
  return config;
}

void Steps(TrainLog& log, int64_t first, int64_t last) {
  for (int64_t i = first; i <= last; ++i) {
    StepReport report{.global_batch = 1, .seconds = 1};
    report.state.iteration = i;
    log.Step(report);
  }
}

// A full disk used to end the training unsaved.
TEST(TrainLogTest, AFullDiskIsReportedOnceAndNoRecordIsLost) {
  TempDir dir;
  const TrainConfig config = LoggedTo(dir);
  auto log = TrainLog::Open(config, Topology{}, 0, 10).value();
  Redirected redirected;
  uint64_t before = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "t")) before = entry.file_size();
  {
    const FileSizeLimit limit(100);
    Steps(*log, 1, 6);
    log->Evaluation(6, 1.0);
  }
  Steps(*log, 7, 8);
  log.reset();
  const std::string said = redirected.Said();
  for (const std::string& flag :
       {"--log-json " + config.log_json, "--tensorboard-dir " + config.tensorboard_dir}) {
    EXPECT_NE(said.find(flag + " cannot be written"), std::string::npos) << said;
    EXPECT_NE(said.find(flag + " works again\n"), std::string::npos) << said;
  }
  EXPECT_EQ(std::ranges::count(said, '\n'), 4) << said;
  std::istringstream lines(Contents(config.log_json));
  int64_t count = 0;
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(line.starts_with("{\"iteration\": " + std::to_string(++count) + ",") && line.ends_with("}"));
  EXPECT_EQ(count, 8);
  for (const auto& entry : std::filesystem::directory_iterator(dir / "t"))
    EXPECT_GT(entry.file_size(), before + 4 * 7 * 40);
}

TEST(TrainLogTest, APlaceThatCannotBeOpenedIsRefused) {
  TempDir dir;
  TrainConfig config;
  config.log_json = dir / "no/l";
  EXPECT_NE(TrainLog::Open(config, Topology{}, 0, 10).status().message().find("--log-json"),
            std::string::npos);
}

}  // namespace
}  // namespace cairn
