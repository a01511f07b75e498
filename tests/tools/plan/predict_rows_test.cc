#include "tools/plan/predict_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cairn {
namespace {

constexpr char kRows[] =
    "gpu,hidden,layers,heads,tp,pp,dp,mbs,gbs,fits\n"
    "h100,4096,32,32,2,1,4,1,64,old\n"
    "a100-80,4096,32,32,2,1,4,1,64,old\n"
    ",4096,32,32,2,1,4,1,64,old\n";

CsvTable Table(const std::string& text) { return ParseCsv(text, "rows.csv").value(); }

double Number(const CsvTable& table, size_t row, std::string_view column) {
  return std::stod(table.Cell(table.rows[row], column));
}

TEST(PredictRowsTest, PredictsEachRowForItsClusterInTheOrderOfTheTable) {
  const auto predicted = PredictRows(Table(kRows), {});
  ASSERT_TRUE(predicted.ok()) << predicted.status().message();
  const CsvTable& table = predicted->table;
  ASSERT_EQ(table.rows.size(), 3u);
  ASSERT_EQ(predicted->fits.size(), 2u);
  EXPECT_EQ(table.Cell(table.rows[0], "gpu"), "h100");
  EXPECT_LT(Number(table, 0, "sec_per_it_pred"), Number(table, 1, "sec_per_it_pred"));
  EXPECT_EQ(Number(table, 1, "sec_per_it_pred"), Number(table, 2, "sec_per_it_pred"));  // the usual cluster
  EXPECT_NE(table.Cell(table.rows[0], "fits"), "old");
  EXPECT_EQ(std::ranges::count(table.header, "fits"), 1);
}

TEST(PredictRowsTest, OneClusterForAllRowsIfItIsNamed) {
  const auto predicted = PredictRows(Table(kRows), {.cluster = "a100-80"});
  ASSERT_TRUE(predicted.ok()) << predicted.status().message();
  ASSERT_EQ(predicted->fits.size(), 1u);
  EXPECT_EQ(predicted->fits[0].cluster, "a100-80");
  EXPECT_EQ(Number(predicted->table, 0, "sec_per_it_pred"), Number(predicted->table, 1, "sec_per_it_pred"));
}

TEST(PredictRowsTest, AClusterThatIsNotBuiltInMustBeNamed) {
  const auto predicted =
      PredictRows(Table("gpu,hidden,layers,heads,tp,pp,dp,mbs,gbs\nmine,1,1,1,1,1,1,1,1\n"), {});
  EXPECT_EQ(predicted.status().message(),
            "rows.csv: gpu 'mine' is not a built-in cluster; name one with --cluster");
}

}  // namespace
}  // namespace cairn
