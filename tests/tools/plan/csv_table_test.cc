#include "tools/plan/csv_table.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(CsvTableTest, QuotesCommasAndLineEndings) {
  const auto table = ParseCsv("\xEF\xBB\xBFname,note\r\n\r\na,\"x, \"\"y\"\"\"\r\nb,\n", "t.csv");
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_EQ(table->rows.size(), 2u);
  EXPECT_EQ(table->Cell(table->rows[0], "note"), "x, \"y\"");
  EXPECT_EQ(table->rows[0].line, 3);
  EXPECT_EQ(table->Cell(table->rows[1], "note"), "");
  EXPECT_EQ(table->Cell(table->rows[1], "absent"), "");
}

TEST(CsvTableTest, WrittenCellsAreReadBack) {
  for (const std::string cell : {"plain", "a,b", "say \"so\"", "two\nlines"}) {
    const auto table = ParseCsv(ToCsv({"t.csv", {"head", "tail"}, {{2, {cell, "x"}}}}), "t.csv");
    ASSERT_TRUE(table.ok()) << table.status().message();
    EXPECT_EQ(table->rows.at(0).cells.at(0), cell);
  }
}

TEST(CsvTableTest, NamesMalformedTables) {
  const auto says = [](std::string_view text, std::string_view part) {
    const auto table = ParseCsv(text, "t.csv");
    return !table.ok() && table.status().message().find("t.csv") != std::string::npos &&
           table.status().message().find(part) != std::string::npos;
  };
  EXPECT_TRUE(says("a,b\n1\n", "t.csv:2: 1 cells, but the header has 2"));
  EXPECT_TRUE(says("a,a\n1,2\n", "has 'a' twice"));
  EXPECT_TRUE(says("a,b\n", "no rows"));
  EXPECT_TRUE(says("", "no rows"));
  EXPECT_TRUE(says(std::string_view("a\0b\n1\n", 6), "not a text file"));
  EXPECT_TRUE(says("a,b\n\"1,2\n", "is it a CSV file?"));
  EXPECT_FALSE(ReadCsv("/nonexistent/t.csv").ok());
}

}  // namespace
}  // namespace cairn
