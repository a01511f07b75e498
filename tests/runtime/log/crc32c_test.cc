#include "runtime/log/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn {
namespace {

// RFC 3720, B.4, and the usual check value.
TEST(Crc32cTest, EqualsTheStandardsVectors) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

}  // namespace
}  // namespace cairn
