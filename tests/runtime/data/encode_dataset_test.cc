#include "runtime/data/encode_dataset.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(EncodeDatasetTest, WritesTheBytesThatMegatronWrites) {
  const DatasetFiles files = EncodeDataset(TokenType::kU16, {{1, 2, 3}, {258}});
  const std::string expected = std::string("MMIDIDX\0\0", 9) + std::string("\1\0\0\0\0\0\0\0", 8) + "\x08" +
                               std::string("\2\0\0\0\0\0\0\0", 8) + std::string("\3\0\0\0\0\0\0\0", 8) +
                               std::string("\3\0\0\0\1\0\0\0", 8) + std::string(8, '\0') +
                               std::string("\6\0\0\0\0\0\0\0", 8) + std::string(8, '\0') +
                               std::string("\1\0\0\0\0\0\0\0", 8) + std::string("\2\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(files.index, expected);
  EXPECT_EQ(files.tokens, std::string("\1\0\2\0\3\0\2\1", 8));
}

}  // namespace
}  // namespace cairn
