#include "tools/report/report_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/report/sample_logs.h"
#include "tools/report/plot.h"

namespace cairn {
namespace {

std::vector<RunSummary> Runs() {
  std::vector<TrainingLog> logs;
  for (const auto& [name, pp, seconds] :
       {std::tuple{"18B-pp8.out", 8, 90.5}, {"52B-pp16|x.out", 16, 129.25}}) {
    std::string text = Dump(4, pp, 4 * pp, 2, 1024);
    for (int i = 1; i <= 3; ++i) text += NewLine(i, 3, seconds, 3.5, 1024);
    logs.push_back(ReadTrainingText(text, name));
  }
  logs.push_back(ReadTrainingText("RuntimeError: CUDA out of memory. <b>\n", "bad,\"one\".out"));
  std::vector<RunSummary> runs;
  for (const TrainingRun& run : JoinRuns(std::move(logs))) runs.push_back(Summarize(run, {}));
  return runs;
}

TEST(ReportTextTest, MarkdownHasTheColumnsOfTheTeamsTables) {
  const std::string table = MarkdownTable(MarkdownColumns(false), Runs());
  EXPECT_TRUE(
      table.starts_with("| GPUs | Size |  DP |  TP |  PP | MBS |  GBS | Mem | Sec/it |  TFLOPs | Notes "))
      << table;
  EXPECT_NE(table.find("|   32 | 181B |   1 |   4 |   8 |   2 | 1024 |   - |  90.50 |"), std::string::npos)
      << table;
  EXPECT_NE(table.find("52B-pp16\\|x"), std::string::npos) << "bars do not end the cell";
  EXPECT_NE(table.find("fail: out of memory (line 1)"), std::string::npos);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
}

TEST(ReportTextTest, CsvIsQuotedIfNecessary) {
  const auto columns = FindColumns({"file", "sec_per_it", "pp"});
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ(CsvText(*columns, Runs()),
            "file,sec_per_it,pp\n18B-pp8.out,90.5,8\n52B-pp16|x.out,129.25,16\n\"bad,\"\"one\"\".out\",,\n");
}

TEST(ReportTextTest, JsonHasTheDocumentedFields) {
  const auto json = ReportJson(Runs());
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["file"], "18B-pp8.out");
  EXPECT_EQ(json[0]["status"], "ok");
  EXPECT_EQ(json[0]["iterations"], 3);
  EXPECT_EQ(json[0]["sec_per_it"], 90.5);
  EXPECT_EQ(json[0]["sec_per_it_skip1"], 90.5);
  EXPECT_EQ(json[0]["sec_per_it_skip2"], 90.5);
  EXPECT_GT(json[0]["tflops"], 0);
  EXPECT_EQ(json[2]["status"], "fail");
  EXPECT_EQ(json[2]["cause"], "out of memory");
  EXPECT_EQ(json[2]["cause_line"], 1);
  EXPECT_TRUE(json[2]["sec_per_it"].is_null());
  EXPECT_TRUE(json[2]["tflops"].is_null());
}

TEST(ReportTextTest, SortingPutsRunsWithoutAValueLast) {
  auto runs = Runs();
  const auto column = FindColumns({"TFLOPs"});
  ASSERT_TRUE(column.ok());
  SortBy(*(*column)[0], true, runs);
  EXPECT_EQ(runs[0].file, "18B-pp8.out");
  EXPECT_EQ(runs[2].cause, "out of memory");
  SortBy(*(*column)[0], false, runs);
  EXPECT_EQ(runs[0].file, "52B-pp16|x.out");
  EXPECT_EQ(runs[2].cause, "out of memory");
  EXPECT_FALSE(FindColumns({"nonsense"}).ok());
}

TEST(ReportTextTest, Sizes) {
  EXPECT_EQ(SizeText(18e9), "18B");
  EXPECT_EQ(SizeText(1.316e9), "1.32B");
  EXPECT_EQ(SizeText(181.2e9), "181B");
  EXPECT_EQ(SizeText(350e6), "350M");
  EXPECT_EQ(SizeText(136192), "136K");
}

TEST(ReportTextTest, PlotsShowTheQuantitiesThatHaveValues) {
  const auto runs = Runs();
  const auto curves = PlotCommands(runs, {}, PlotType::kSvg);
  ASSERT_TRUE(curves.ok());
  EXPECT_NE(curves->find("$data_0_1 << END\n1 3.5\n2 3.5\n3 3.5\nEND\n"), std::string::npos);
  const auto sweep = PlotCommands(runs, {.x = "PP", .y = {"sec_per_it"}}, PlotType::kPng);
  ASSERT_TRUE(sweep.ok());
  EXPECT_NE(sweep->find("8 90.5\n16 129.25\n"), std::string::npos);
  EXPECT_FALSE(PlotCommands(runs, {.x = "file", .y = {}}, PlotType::kPng).ok());
  EXPECT_FALSE(PlotCommands(runs, {.x = "iteration", .y = {"pp"}}, PlotType::kPng).ok());
  EXPECT_FALSE(PlotCommands({}, {}, PlotType::kPng).ok());
  EXPECT_FALSE(PlotTypeOf("a.pdf").ok());
}

TEST(ReportTextTest, ASweepShowsItsSlowestRun) {
  const RunSummary usual = Runs()[0];
  std::vector<RunSummary> runs(40, usual);
  runs.back().sec_per_it = 10 * *usual.sec_per_it;
  for (size_t i = 0; i + 1 < runs.size(); ++i) *runs[i].sec_per_it += 0.01 * static_cast<double>(i);
  const auto sweep = PlotCommands(runs, {.x = "PP", .y = {"sec_per_it"}}, PlotType::kPng);
  ASSERT_TRUE(sweep.ok());
  const size_t range = sweep->find("set yrange ["), colon = sweep->find(':', range);
  EXPECT_GT(std::stod(sweep->substr(colon + 1)), *runs.back().sec_per_it);
}

}  // namespace
}  // namespace cairn
