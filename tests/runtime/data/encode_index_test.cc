#include "runtime/data/encode_index.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(EncodeIndexTest, WritesTheBytesThatMegatronWrites) {
  const int32_t lengths[] = {3, 1};
  const std::string expected = std::string("MMIDIDX\0\0", 9) + std::string("\1\0\0\0\0\0\0\0", 8) + "\x08" +
                               std::string("\2\0\0\0\0\0\0\0", 8) + std::string("\3\0\0\0\0\0\0\0", 8) +
                               std::string("\3\0\0\0\1\0\0\0", 8) + std::string(8, '\0') +
                               std::string("\6\0\0\0\0\0\0\0", 8) + std::string(8, '\0') +
                               std::string("\1\0\0\0\0\0\0\0", 8) + std::string("\2\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(EncodeIndex(TokenType::kU16, lengths), expected);
}

}  // namespace
}  // namespace cairn
