#include "ckpt/base/utf8.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(Utf8Test, FindsTheEndOfCharactersOfEachLength) {
  EXPECT_EQ(Utf8Length("a\x80"), 1u);
  EXPECT_EQ(Utf8Length("\xC3\xA9x"), 2u);
  EXPECT_EQ(Utf8Length("\xE2\x82\xAC"), 3u);
  EXPECT_EQ(Utf8Length("\xF4\x8F\xBF\xBF"), 4u);  // U+10FFFF
}

TEST(Utf8Test, InvalidSequencesHaveNoLength) {
  for (const std::string_view text : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
                                      "\xF0\x8F\xBF", "\xF0\x9F\x98", "\xF4\x90\x80\x80", "\xF5", "\xE2x"})
    EXPECT_EQ(Utf8Length(text), 0u) << text;
}

}  // namespace
}  // namespace cairn
