#include "ckpt/base/nearest_name.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(EditDistanceTest, CountsChangedLetters) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("inspct", "inspect"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("ls", "ls"), 0u);
}

TEST(NearestNameTest, SuggestsOnlyCloseNames) {
  const std::vector<std::string> names = {"every", "last", "weights-suffice"};
  EXPECT_EQ(NearestName(names, "evry"), "every");
  EXPECT_EQ(NearestName(names, "weights-sufice-x"), "weights-suffice");
  EXPECT_EQ(NearestName(names, "monthly"), "");
  EXPECT_EQ(NearestName({}, "every"), "");
}

}  // namespace
}  // namespace cairn
