// Tables damaged at random: each gives rows or one line that names the table, never a crash, and rows can be
// predicted. CAIRN_LONG=1 tries a million.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/long_form.h"
#include "tools/plan/calibration.h"

namespace cairn {
namespace {

constexpr std::string_view kTable =
    "gpus,size_b,hidden,layers,heads,seq,vocab,dp,tp,pp,mbs,gbs,zero,mem_gb,sec_per_it,tflops,note,table\r\n"
    "8,20,14400,8,32,2048,250000,1,8,1,1,2048,1,67,,108.47,02-17,\"a, b\"\r\n"
    "384,194,14400,,,2048,250000,8,8,6,2,2048,1,OOM,172.36,98.43,02-20,c\r\n";
constexpr std::string_view kPieces[] = {"\"",     ",",   "\n",  "\r",     "-1",  "0",    "1e308",
                                        "1e-308", "nan", "inf", "999999", "OOM", "\xFF", "x"};

std::string Damaged(std::mt19937_64& random) {
  std::string text(kTable);
  for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes) {
    const size_t at = random() % (text.size() + 1);
    switch (random() % 3) {
      case 0:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 1:
        text.erase(at, random() % 8);
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random());
    }
  }
  return text;
}

TEST(TableFuzzTest, DamagedTablesGiveRowsOrAOneLineError) {
  const int64_t tries = IsLongForm() ? 1'000'000 : 20'000;
  const Cluster cluster = *FindCluster("a100-80");
  const Calibration calibration = *Calibrate({}, cluster);
  std::mt19937_64 random(8);
  int64_t read = 0;
  for (int64_t i = 0; i < tries; ++i) {
    const std::string text = Damaged(random);
    const auto table = ParseCsv(text, "fuzzed");
    const auto rows =
        table.ok() ? ParseRunRows(*table, i % 2 == 0, cluster) : Result<RunRows>(table.status());
    if (!rows.ok()) {
      ASSERT_EQ(rows.status().message().find('\n'), std::string::npos);
      ASSERT_EQ(rows.status().message().rfind("fuzzed", 0), 0u) << rows.status().message();
      continue;
    }
    ++read;
    const RunRow& row = rows->rows.front();
    const Prediction p = Predict(row.shape, row.setup, cluster, calibration);
    ASSERT_TRUE(std::isfinite(p.seconds.value) && p.seconds.value > 0) << text;
    ASSERT_TRUE(std::isfinite(p.memory_gb.value) && p.memory_gb.value > 0) << text;
  }
  EXPECT_GT(read, tries / 20);
}

}  // namespace
}  // namespace cairn
