#include "tools/serve/copy_interval.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

std::optional<int64_t> Chosen(CopyInterval& copies, double failures_per_second) {
  return copies.Choose([&] { return failures_per_second; });
}

TEST(CopyIntervalTest, NothingIsKnownBeforeACopyAndTwoSaves) {
  CopyInterval copies;
  EXPECT_FALSE(Chosen(copies, 1));
  copies.Began(100);
  copies.Copied(0.001);
  EXPECT_FALSE(Chosen(copies, 1));
  copies.Began(101);
  EXPECT_TRUE(Chosen(copies, 1));
}

// A save every two seconds, of which a copy takes ten, and the training loses 0.1 to it.
TEST(CopyIntervalTest, FailuresMakeItShortAndItChangesOnlyAfterACopy) {
  CopyInterval copies;
  for (const double seconds : {100, 102, 104}) copies.Began(seconds);
  copies.Copied(10);
  EXPECT_EQ(Chosen(copies, 1), 5);  // one copy ends before the next begins
  EXPECT_EQ(Chosen(copies, 1e-6), 5);
  copies.Copied(10);
  EXPECT_NEAR(static_cast<double>(*Chosen(copies, 1e-6)), 224, 2);  // Young: root of 2 * 0.1 * 1e6 seconds
}

}  // namespace
}  // namespace cairn
