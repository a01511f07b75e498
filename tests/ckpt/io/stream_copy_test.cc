#include "ckpt/io/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace cairn {
namespace {

TEST(StreamCopyTest, CopiesExactlyTheBytesAtAnyAlignment) {
  std::vector<std::byte> from(1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const size_t at : {0, 1, 15, 33, 63}) {
    for (const size_t size : {0, 1, 31, 32, 63, 64, 65, 127, 128, 500, 900}) {
      std::vector<std::byte> to(1100), expected(1100);
      StreamCopy(to.data() + at, std::span(from).subspan(at / 2, size));
      StreamFence();
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at / 2), size,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
      EXPECT_EQ(to, expected) << at << " " << size;
    }
  }
}

}  // namespace
}  // namespace cairn
