#include "runtime/log/train_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ckpt/base/unique_fd.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::string Contents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// Stderr goes into a pipe, to which no file size limit applies, and stdout nowhere.
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
    log->Evaluation({.iteration = 6, .loss = 1.0});
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

// The log line of one interval of two steps.
std::string LineOf(const TrainConfig& config, const StepReport& first, const StepReport& second) {
  auto log = TrainLog::Open(config, Topology{}, 0, 10).value();
  testing::internal::CaptureStdout();
  log->Step(first);
  log->Step(second);
  log.reset();
  return testing::internal::GetCapturedStdout();
}

StepReport Report(int64_t iteration, double loss, bool skipped) {
  StepReport report{.global_batch = 4,
                    .lr = 1.25e-4,
                    .loss = loss,
                    .grad_norm = skipped ? std::nan("") : 1.5,
                    .zeros = 7,
                    .skipped = skipped,
                    .seconds = 0.25};
  report.state.iteration = iteration;
  report.state.consumed_samples = 4 * iteration;
  return report;
}

TEST(TrainLogTest, TheEvaluationOfANanLossIsNotRecorded) {
  TempDir dir;
  auto log = TrainLog::Open(LoggedTo(dir), Topology{}, 0, 10).value();
  const auto event_bytes = [&] {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir / "t")) bytes += entry.file_size();
    return bytes;
  };
  const uint64_t before = event_bytes();
  testing::internal::CaptureStdout();
  log->Evaluation({.iteration = 1, .loss = std::nan("")});
  EXPECT_EQ(event_bytes(), before) << "TensorBoard shows no NaN";
  log->Evaluation({.iteration = 2, .loss = 2.0});
  EXPECT_GT(event_bytes(), before);
  log.reset();
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("lm loss value: NAN | lm loss PPL: NAN |"), std::string::npos) << said;
  EXPECT_NE(said.find("lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 |"), std::string::npos)
      << said;
}

TEST(TrainLogTest, ALineMatchesMegatronsWithoutMissingValues) {
  TrainConfig config;
  config.log_interval = 2;
  std::string line = LineOf(config, Report(1, 9, true), Report(2, 5, false));
  EXPECT_NE(line.find(" iteration        2/      10 | consumed samples:            8 | "), std::string::npos)
      << line;
  EXPECT_NE(
      line.find(
          "| elapsed time per iteration (ms): 250.0 | learning rate: 1.250000E-04 | global batch "
          "size:     4 | lm loss: 5.000000E+00 | loss scale: 1.0 | grad norm: 1.500 | number of skipped "
          "iterations:   1 | number of nan iterations:   0 |"),
      std::string::npos)
      << line;
  EXPECT_EQ(line.find("num zeros"), std::string::npos) << "nobody counted them: " << line;
  line = LineOf(config, Report(1, 9, true), Report(2, 5, true));
  EXPECT_EQ(line.find("lm loss"), std::string::npos) << line;
  EXPECT_EQ(line.find("grad norm"), std::string::npos) << line;
  config.log_num_zeros_in_grad = true;
  line = LineOf(config, Report(1, 9, false), Report(2, 5, false));
  EXPECT_NE(line.find("lm loss: 7.000000E+00 |"), std::string::npos) << line;
  EXPECT_NE(line.find("| num zeros: 7.0 |"), std::string::npos) << line;
}

TEST(TrainLogTest, TensorBoardHasMegatronsTagsEachStepAndNoNan) {
  TempDir dir;
  TrainConfig config;
  config.tensorboard_dir = dir / "t";
  config.log_interval = 2;
  LineOf(config, Report(1, std::nan(""), true), Report(2, 5, false));
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "t")) bytes += Contents(entry.path());
  const auto count = [&](const std::string& tag) {  // a tag follows its length
    int64_t found = 0;
    const std::string field = "\x0a" + std::string(1, static_cast<char>(tag.size())) + tag;
    for (size_t at = bytes.find(field); at != std::string::npos; at = bytes.find(field, at + 1)) ++found;
    return found;
  };
  for (const char* tag : {"learning-rate", "batch-size", "loss-scale"}) {
    EXPECT_EQ(count(tag), 2) << tag;
    EXPECT_EQ(count(std::string(tag) + " vs samples"), 2) << tag;
  }
  for (const char* tag : {"lm loss", "grad-norm", "iteration-time", "throughput"})
    EXPECT_EQ(count(tag), 1) << tag;
  EXPECT_EQ(count("num-zeros"), 0);
  EXPECT_EQ(count("mfu"), 0);
}

TEST(TrainLogTest, PrintsThroughputAndMfuOnRequest) {
  TrainConfig config;
  config.log_interval = 2;
  std::string line = LineOf(config, Report(1, 5, false), Report(2, 5, false));
  EXPECT_EQ(line.find("throughput"), std::string::npos) << line;
  EXPECT_EQ(line.find("MFU"), std::string::npos) << "no peak is known: " << line;
  config.log_throughput = true;
  const double tflops = StepFlops(config, Topology{}, 4).model / 0.25 / 1e12;
  config.peak_tflops = 4 * tflops;
  line = LineOf(config, Report(1, 5, false), Report(2, 5, false));
  EXPECT_NE(line.find(fmt::format("(ms): 250.0 | throughput per GPU (TFLOP/s/GPU): {:.1f} | MFU (%): 25.00 | "
                                  "learning rate: ",
                                  tflops)),
            std::string::npos)
      << line;
}

// A killed training loses at most the points that may wait.
TEST(TrainLogTest, TensorBoardPointsWaitForALogLineOrAFullQueue) {
  for (const auto& [queue, written] : {std::pair{1000, false}, std::pair{8, true}}) {
    TempDir dir;
    TrainConfig config;
    config.tensorboard_dir = dir / "t";
    config.tensorboard_queue_size = queue;
    config.log_interval = 100;
    const auto log = TrainLog::Open(config, Topology{}, 0, 10).value();
    const auto bytes = [&] { return std::filesystem::directory_iterator(dir / "t")->file_size(); };
    const uint64_t before = bytes();
    log->Step(Report(1, 5, false));
    EXPECT_EQ(bytes() > before, written) << queue;
  }
}

// 72 B s l h^2 (1 + s / 12h + v / 12lh), Megatron-LM's.
TEST(StepFlopsTest, ModelFlopsMatchMegatronsWithoutRecomputation) {
  TrainConfig config;
  config.num_layers = 24;
  config.hidden_size = 1024;
  config.num_attention_heads = 16;
  config.seq_length = 2048;
  config.vocab_size = 50304;
  const double megatron =
      72.0 * 8 * 2048 * 24 * 1024 * 1024 * (1 + 2048 / 12288.0 + 50304 / (12.0 * 24 * 1024));
  const Flops plain = StepFlops(config, Topology{}, 8);
  EXPECT_NEAR(plain.model / megatron, 1, 1e-12);
  EXPECT_EQ(plain.hardware, plain.model);
  config.recompute_granularity = "full";
  EXPECT_EQ(StepFlops(config, Topology{}, 8).model, plain.model);
  const double layers = 24.0 * 8 * 2048 * 24 * 1024 * 1024 * (1 + 2048 / 12288.0);
  EXPECT_NEAR(StepFlops(config, Topology{}, 8).hardware / (plain.model + layers), 1, 1e-12);
  config.recompute_method = "block";
  config.recompute_num_layers = 5;  // of each of two stages
  EXPECT_NEAR(StepFlops(config, Topology{.pp = 2}, 8).hardware / (plain.model + layers * 10 / 24), 1, 1e-12);
  config.ffn_hidden_size = 2048;  // saves 3 * 2 * 2 * 2h * h a token and layer
  EXPECT_NEAR((plain.model - StepFlops(config, Topology{}, 8).model) / (24.0 * 8 * 2048 * 24 * 1024 * 1024),
              1, 1e-12);
}

TEST(TrainLogTest, RefusesAPathThatCannotBeOpened) {
  TempDir dir;
  TrainConfig config;
  config.log_json = dir / "no/l";
  EXPECT_NE(TrainLog::Open(config, Topology{}, 0, 10).status().message().find("--log-json"),
            std::string::npos);
}

}  // namespace
}  // namespace cairn
