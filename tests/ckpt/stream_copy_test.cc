#include "ckpt/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace cairn {
namespace {

TEST(StreamCopyTest, CopiesEveryLengthAtEveryAlignmentAndNothingElse) {
  std::vector<std::byte> from(512);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t to_at = 0; to_at < 66; ++to_at) {
    for (size_t bytes = 0; bytes < 260; ++bytes) {
      std::vector<std::byte> to(512);
      const size_t from_at = (to_at * 5 + bytes) % 64;
      StreamCopy(to.data() + to_at, {from.data() + from_at, bytes});
      for (size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= to_at && i < to_at + bytes;
        ASSERT_EQ(to[i], inside ? from[from_at + i - to_at] : std::byte{})
            << to_at << " " << bytes << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace cairn
