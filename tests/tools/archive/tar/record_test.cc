#include "tools/archive/tar/record.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

ArchiveRecord ExampleRecord() {
  return {.name = "gpt",
          .run = std::string(32, '7'),
          .step = 31,
          .directory = "gpt/step-00000031",
          .manifest_digest = std::string(32, 'd'),
          .source = "/scratch/gpt/step-00000031"};
}

TEST(ArchiveRecordTest, BranchesOfEveryVersionAreKept) {
  const struct {
    Descent descent;
    const char* version;
  } rows[] = {
      {{}, "\"version\": 2"},
      {{.branches = {{"", 10}, {"", 10}}, .first_steps = {11, 11}}, "\"version\": 6"},
      {{.branches = {{"ab", 30}, {"ab", -1}}}, "\"version\": 8"},
  };
  for (const auto& row : rows) {
    ArchiveRecord record = ExampleRecord();
    record.descent = row.descent;
    const std::string text = EncodeRecord(record);
    EXPECT_NE(text.find(row.version), std::string::npos) << text;
    const Result<ArchiveRecord> decoded = DecodeRecord(text);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(*decoded, record);
  }
}

TEST(ArchiveRecordTest, EscapesASourceThatIsNotUtf8) {
  ArchiveRecord record = ExampleRecord();
  record.source = "/scratch/\xff%/step-00000031";
  record.descent.branches = {{"ab", 30}};
  const Result<ArchiveRecord> decoded = DecodeRecord(EncodeRecord(record));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, record);
}

}  // namespace
}  // namespace cairn
