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

// As Python's bytes.decode(errors="replace") does it.
TEST(Utf8Test, InvalidSequencesAreReplacedAsInPython) {
  const std::pair<std::string_view, size_t> bad[] = {
      {"\x80", 1},         {"\xC1\xBF", 1},     {"\xE0\x9F\xBF", 1},     {"\xED\xA0\x80", 1}, {"\xE2\x82", 2},
      {"\xF0\x8F\xBF", 1}, {"\xF0\x9F\x98", 3}, {"\xF4\x90\x80\x80", 1}, {"\xF5", 1},         {"\xE2x", 1}};
  for (const auto& [text, replaced] : bad) {
    size_t bytes = 0;
    EXPECT_EQ(Utf8Length(text, &bytes), 0u) << text;
    EXPECT_EQ(bytes, replaced) << text;
  }
}

}  // namespace
}  // namespace cairn
