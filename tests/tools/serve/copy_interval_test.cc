#include "tools/serve/copy_interval.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(CopyIntervalTest, NothingIsKnownBeforeACopyAndTwoSaves) {
  CopyInterval copies;
  EXPECT_FALSE(copies.Choose());
  copies.Began(100);
  copies.Copied(0.001, 1);
  EXPECT_FALSE(copies.Choose());
  copies.Began(101);
  EXPECT_TRUE(copies.Choose());
}

// A save every two seconds, of which a copy takes ten, and the training loses 0.1 to it.
TEST(CopyIntervalTest, FailuresMakeItShortAndItChangesOnlyAfterACopy) {
  CopyInterval copies;
  for (const double seconds : {100, 102, 104}) copies.Began(seconds);
  copies.Copied(10, 1);
  EXPECT_EQ(copies.Choose(), 5);  // one copy ends before the next begins
  copies.Copied(10, 1e-6);
  EXPECT_NEAR(static_cast<double>(*copies.Choose()), 224, 2);  // Young: root of 2 * 0.1 * 1e6 seconds
}

}  // namespace
}  // namespace cairn
