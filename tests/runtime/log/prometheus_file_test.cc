#include "runtime/log/prometheus_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

struct Metric {
  std::string type, label;
  double value = 0;
};

// A strict parser of the text format 0.0.4: for each metric HELP, TYPE and one sample, in this
// order, and nothing else.
std::map<std::string, Metric> Parse(const std::string& text) {
  static const std::regex help(R"re(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) [^\n]+)re");
  static const std::regex type(R"re(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge))re");
  static const std::regex sample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{run="((?:[^"\\\n]|\\["\\n])*)"\})? (NaN|[+-]Inf|-?[0-9.]+(?:e[+-][0-9]+)?))re");
  std::map<std::string, Metric> metrics;
  EXPECT_TRUE(text.ends_with("\n"));
  std::istringstream in(text);
  std::string first, second, third;
  while (std::getline(in, first)) {
    std::smatch h, t, s;
    EXPECT_TRUE(std::getline(in, second) && std::getline(in, third)) << first;
    EXPECT_TRUE(std::regex_match(first, h, help)) << first;
    EXPECT_TRUE(std::regex_match(second, t, type)) << second;
    EXPECT_TRUE(std::regex_match(third, s, sample)) << third;
    if (h.empty() || t.empty() || s.empty()) break;
    EXPECT_EQ(h[1], t[1]);
    EXPECT_EQ(h[1], s[1]);
    const Metric metric{.type = t[2], .label = s[3], .value = std::stod(s[4])};
    EXPECT_EQ(metric.type == "counter", h[1].str().ends_with("_total"));
    EXPECT_TRUE(metrics.emplace(h[1], metric).second) << "twice: " << h[1];
  }
  return metrics;
}

TEST(PrometheusFileTest, TheTextIsWellFormedAndComplete) {
  TrainMetrics metrics{.run = "/a \"b\"\\c",
                       .report = {.state = {.iteration = 12,
                                            .consumed_samples = 96,
                                            .consumed_tokens = 98304,
                                            .skipped_iterations = 3,
                                            .nan_iterations = 1},
                                  .lr = 6e-5,
                                  .loss = 2.5},
                       .saves = {.failed = 2, .failed_in_a_row = 1},
                       .tokens_per_second = 1234.5,
                       .model_flops_per_second = 1.5e15};
  auto parsed = Parse(PrometheusText(metrics));
  EXPECT_EQ(parsed["cairn_train_iteration"].value, 12);
  EXPECT_EQ(parsed["cairn_train_loss"].value, 2.5);
  EXPECT_EQ(parsed["cairn_train_loss"].label, "/a \\\"b\\\"\\\\c");
  EXPECT_EQ(parsed["cairn_train_learning_rate"].value, 6e-5);
  EXPECT_EQ(parsed["cairn_train_model_flops_per_second"].value, 1.5e15);
  EXPECT_EQ(parsed["cairn_train_skipped_iterations"].value, 3);
  EXPECT_EQ(parsed["cairn_train_nan_iterations"].value, 1);
  EXPECT_EQ(parsed["cairn_train_failed_saves_total"].value, 2);
  EXPECT_EQ(parsed["cairn_train_failed_saves_total"].type, "counter");
  EXPECT_EQ(parsed["cairn_train_failed_saves_in_a_row"].value, 1);
  for (const char* unknown : {"durable_iteration", "durable_timestamp_seconds", "save_stall_seconds",
                              "save_lag_iterations", "validation_loss"})
    EXPECT_FALSE(parsed.contains(std::string("cairn_train_") + unknown)) << unknown;

  metrics.report.loss = std::nan("");
  metrics.saves.durable_iteration = 8;
  metrics.saves.durable_unix_seconds = 1.7e9;
  metrics.saves.stall_seconds = 0.25;
  metrics.run = "";
  parsed = Parse(PrometheusText(metrics));
  EXPECT_TRUE(std::isnan(parsed["cairn_train_loss"].value));
  EXPECT_EQ(parsed["cairn_train_durable_iteration"].value, 8);
  EXPECT_EQ(parsed["cairn_train_durable_timestamp_seconds"].value, 1.7e9);
  EXPECT_EQ(parsed["cairn_train_save_lag_iterations"].value, 4);
  EXPECT_EQ(parsed["cairn_train_save_stall_seconds"].value, 0.25);
}

TEST(PrometheusFileTest, ReplacesTheFileAndReportsAFailureOnce) {
  TempDir dir;
  std::filesystem::create_directory(dir / "d");
  PrometheusFile file(dir / "d/train.prom");
  for (const int64_t iteration : {1, 2}) {
    file.Write({.report = {.state = {.iteration = iteration}}});
    std::ostringstream text;
    text << std::ifstream(dir / "d/train.prom").rdbuf();
    EXPECT_EQ(Parse(text.str())["cairn_train_iteration"].value, static_cast<double>(iteration));
    EXPECT_FALSE(std::filesystem::exists(dir / "d/train.prom.partial"));
  }
  std::filesystem::remove_all(dir / "d");
  testing::internal::CaptureStderr();
  file.Write({});
  file.Write({});
  std::filesystem::create_directory(dir / "d");
  file.Write({});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(said, '\n'), 2) << said;
  EXPECT_NE(said.find("train.prom works again"), std::string::npos) << said;
}

}  // namespace
}  // namespace cairn
