#include "tools/serve/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cairn {
namespace {

using ::testing::HasSubstr;

// Files whose names are their contents.
Status Add(Copies& copies, int rank, const std::string& group, const nlohmann::json& digests) {
  return copies.Add(rank, {{group, digests.dump()}}, [](const std::string& name) { return Result(name); });
}

TEST(CopiesTest, EqualCopiesPassWithoutReadingAFile) {
  Copies copies;
  const auto unread = [](const std::string& name) -> Result<std::string> { return NotFound("{}", name); };
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(copies.Add(rank, {{"all", "team-copies-1"}}, unread).ok());
  EXPECT_TRUE(copies.Add(3, {{"others", "team-copies-2"}}, unread).ok());
  EXPECT_EQ(copies.Add(4, {{"all", "team-copies-3"}}, unread).kind(), StatusKind::kNotFound);
}

TEST(CopiesTest, DifferentValuesAreRefusedByName) {
  Copies copies;
  ASSERT_TRUE(Add(copies, 0, "all", {{"a,0,0", "1"}, {"w1,0,0", "2"}, {"w2,0,0", "3"}}).ok());
  const Status refused = Add(copies, 2, "all", {{"a,0,0", "1"}, {"w1,0,0", "4"}, {"w2,0,0", "5"}});
  EXPECT_EQ(refused.kind(), StatusKind::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("ranks 0 and 2 differ in w1 and 1 more tensors"));
  EXPECT_TRUE(copies.differences().empty());
}

TEST(CopiesTest, TensorsOfOneRankAreRefusedByName) {
  Copies copies;
  ASSERT_TRUE(Add(copies, 0, "all", {{"a,0", "1"}}).ok());
  EXPECT_THAT(Add(copies, 1, "all", {{"a,0", "1"}, {"b,0", "1"}}).message(), HasSubstr("differ in b,"));
}

TEST(CopiesTest, GivenRanksThatDifferAreRecorded) {
  Copies copies;
  ASSERT_TRUE(Add(copies, 0, "given-1", {{"a,0", "1"}}).ok());
  ASSERT_TRUE(Add(copies, 1, "given-1", {{"a,0", "2"}}).ok());
  EXPECT_EQ(copies.differences(),
            std::vector<std::string>{"ranks 0 and 1 differ in a; one rank's were kept"});
}

TEST(CopiesTest, DamagedFilesAreErrors) {
  Copies copies;
  ASSERT_TRUE(Add(copies, 0, "all", {{"a,0", "1"}}).ok());
  EXPECT_EQ(Add(copies, 1, "all", nlohmann::json::array()).kind(), StatusKind::kCorrupt);
}

}  // namespace
}  // namespace cairn
