#include "tools/check/verify_standing.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::vector<CheckedFile> FilesAt(int64_t seconds) {
  return {{"shard-00000.h5", 1000, seconds * kSecond, seconds * kSecond, 11},
          {"index.h5", 100, seconds * kSecond, seconds * kSecond, 12}};
}

const std::vector<CheckedFile> kFiles = FilesAt(50);

Check Pass(CheckKind kind, uint64_t bytes = 0) {
  return {.kind = kind,
          .unix_seconds = 100,
          .bytes = bytes,
          .of_bytes = 1100,
          .ranges = {},
          .first_problems = {},
          .files = kFiles};
}

Check Fail(CheckKind kind, std::vector<CheckedRange> ranges = {}) {
  Check check = Pass(kind);
  check.problems = 1;
  check.first_problems = {"shard-00000.h5 at byte 7: does not match its digest"};
  check.ranges = std::move(ranges);
  return check;
}

Check Sample(uint64_t begin, uint64_t end) {
  Check check = Pass(CheckKind::kSample, end - begin);
  check.ranges = {{"shard-00000.h5", begin, end}};
  return check;
}

std::vector<Check> Added(const std::vector<Check>& checks) {
  std::vector<Check> all;
  for (const Check& check : checks) AddCheck(all, check);
  return all;
}

TEST(VerifyStandingTest, TheStrongestPassAndEveryOpenFailureCount) {
  using enum CheckKind;
  const Check byte_fails = Fail(kEveryByte), byte_passes = Pass(kEveryByte, 1100);
  const Check sample_fails = Fail(kSample, {{"shard-00000.h5", 200, 300}});
  const struct {
    const char* what;
    std::vector<Check> checks;
    Trust trust;
  } kCases[] = {
      {"nothing was looked at", {}, Trust::kUnverified},
      {"the structure does not prove the bytes", {Pass(kStructure)}, Trust::kUnverified},
      {"values do not prove the saved bytes", {Pass(kValues, 1100)}, Trust::kUnverified},
      {"a sample is a part", {Sample(0, 22)}, Trust::kPartlyVerified},
      {"every byte is all", {byte_passes}, Trust::kVerified},
      {"a weaker pass takes nothing", {byte_passes, Pass(kStructure), Sample(0, 22)}, Trust::kVerified},
      {"a failure", {byte_fails}, Trust::kDamaged},
      {"after a pass", {byte_passes, byte_fails}, Trust::kDamaged},
      {"the structure hides no failure", {byte_fails, Pass(kStructure)}, Trust::kDamaged},
      {"nor does a lucky sample", {byte_fails, Sample(0, 22)}, Trust::kDamaged},
      {"nor do values", {byte_fails, Pass(kValues, 1100)}, Trust::kDamaged},
      {"every byte again settles it", {byte_fails, byte_passes}, Trust::kVerified},
      {"a later failure is a new one", {byte_fails, byte_passes, byte_fails}, Trust::kDamaged},
      {"a sample that fails", {byte_passes, sample_fails}, Trust::kDamaged},
      {"other bytes do not settle it", {sample_fails, Sample(0, 250)}, Trust::kDamaged},
      {"the same bytes do", {sample_fails, Sample(100, 400)}, Trust::kPartlyVerified},
      {"a failure that names no bytes needs all", {Fail(kSample), Sample(0, 1000)}, Trust::kDamaged},
      {"and all settles it", {Fail(kSample), byte_passes}, Trust::kVerified},
      {"wrong structure", {Fail(kStructure)}, Trust::kDamaged},
      {"settled by itself", {Fail(kStructure), Pass(kStructure)}, Trust::kUnverified},
      {"or by more", {Fail(kStructure), byte_passes}, Trust::kVerified},
      {"wrong values are not settled by bytes", {Fail(kValues), byte_passes}, Trust::kDamaged},
      {"but by values", {byte_passes, Fail(kValues), Pass(kValues)}, Trust::kVerified},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(Name(StandingOf(c.checks, kFiles).trust), Name(c.trust)) << c.what;
    EXPECT_EQ(Name(StandingOf(Added(c.checks), kFiles).trust), Name(c.trust)) << c.what << ", kept short";
  }
}

TEST(VerifyStandingTest, AChangedFileCountsAsUnchecked) {
  const std::vector<Check> checks = {Sample(0, 550), Pass(CheckKind::kEveryByte, 1100)};
  EXPECT_EQ(StandingOf(checks, kFiles).trust, Trust::kVerified);
  const auto changed_by = [&](auto change) {
    std::vector<CheckedFile> now = kFiles;
    change(now[1]);
    const Standing standing = StandingOf(checks, now);
    EXPECT_NE(standing.why.find("index.h5"), std::string::npos) << standing.why;
    return standing.trust;
  };
  EXPECT_EQ(changed_by([](CheckedFile& f) { ++f.bytes; }), Trust::kChanged);
  EXPECT_EQ(changed_by([](CheckedFile& f) { ++f.modified_unix_nanoseconds; }), Trust::kChanged);
  EXPECT_EQ(changed_by([](CheckedFile& f) { ++f.changed_unix_nanoseconds; }), Trust::kChanged);
  EXPECT_EQ(changed_by([](CheckedFile& f) { ++f.inode; }), Trust::kChanged);
  EXPECT_EQ(StandingOf(checks, {kFiles[0]}).trust, Trust::kChanged) << "one is gone";
  EXPECT_EQ(StandingOf({Sample(0, 550)}, FilesAt(60)).trust, Trust::kUnverified);
  EXPECT_EQ(StandingOf({Fail(CheckKind::kEveryByte)}, FilesAt(60)).trust, Trust::kDamaged)
      << "a change is not a repair until it was checked";
  EXPECT_DOUBLE_EQ(StandingOf({Sample(0, 550)}, kFiles).share, 0.5);
}

TEST(VerifyStandingTest, AnOldRecordHoldsForUnchangedFiles) {
  Check old = Pass(CheckKind::kEveryByte, 1100);
  old.files.clear();
  EXPECT_EQ(StandingOf({old}, FilesAt(99)).trust, Trust::kVerified);
  EXPECT_EQ(StandingOf({old}, FilesAt(101)).trust, Trust::kChanged);
}

TEST(VerifyStandingTest, ManyChecksShrinkToAShortEquivalentList) {
  std::vector<Check> checks;
  AddCheck(checks, Pass(CheckKind::kEveryByte, 1100));
  for (uint64_t i = 0; i < 200; ++i) {
    AddCheck(checks, Pass(CheckKind::kStructure));
    AddCheck(checks, Sample(i, i + 1));
  }
  EXPECT_EQ(StandingOf(checks, kFiles).trust, Trust::kVerified);
  for (uint64_t i = 0; i < 200; ++i) {
    AddCheck(checks, Fail(CheckKind::kEveryByte));
    AddCheck(checks, Fail(CheckKind::kSample, {{"shard-00000.h5", 4 * i, 4 * i + 1}}));
  }
  EXPECT_LE(checks.size(), 20u);
  AddCheck(checks, Sample(500, 1000));
  EXPECT_EQ(StandingOf(checks, kFiles).trust, Trust::kDamaged);
  AddCheck(checks, Sample(0, 1000));
  EXPECT_EQ(StandingOf(checks, kFiles).trust, Trust::kDamaged) << "every byte failed too";
  AddCheck(checks, Pass(CheckKind::kEveryByte, 1100));
  EXPECT_EQ(StandingOf(checks, kFiles).trust, Trust::kVerified);
}

}  // namespace
}  // namespace cairn
