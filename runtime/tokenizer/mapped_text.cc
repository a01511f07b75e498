#include "runtime/tokenizer/mapped_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "ckpt/base/utf8.h"

namespace cairn {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
// Characters below U+0300 are composed, and none of them joins the character before it: lead bytes to 0xCC.
constexpr uint8_t kFirstLeadToCompose = 0xCC;

struct FreeText {
  void operator()(utf8proc_uint8_t* text) const { std::free(text); }
};

// NFC of `text` by utf8proc.
std::string ComposedPart(std::string_view text) {
  utf8proc_uint8_t* result = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &result,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, FreeText> owner(result);
  if (size < 0) throw std::bad_alloc();  // the text is valid
  return {reinterpret_cast<const char*>(result), static_cast<size_t>(size)};
}

// U+11A7 joins no character before it, but utf8proc 2.8 takes it for an empty end of a Hangul syllable.
bool JoinsNothing(std::string_view text, size_t at) { return text.substr(at).starts_with("\xE1\x86\xA7"); }

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

constexpr std::array<std::string_view, 25> kSpaces = {
    "\t",           "\n",           "\v",           "\f",           "\r",           " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82",
    "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88",
    "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F",
    "\xE3\x80\x80"};

}  // namespace

void MappedText::Replace(uint64_t done, uint64_t begin, uint64_t end, std::string_view replacement) {
  text_ += original_.substr(done, begin - done);
  const uint64_t at = text_.size();
  text_ += replacement;
  changed_.push_back({at, text_.size(), begin, end});
}

MappedText MappedText::ValidUtf8(std::string_view text) {
  MappedText mapped(text);
  uint64_t done = 0;
  for (size_t i = 0; i < text.size();) {
    size_t bad = 0;
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
    } else if (const size_t length = Utf8Length(text.substr(i), &bad); length > 0) {
      i += length;
    } else {
      const size_t end = i + bad;
      mapped.Replace(done, i, end, kReplacement);
      done = i = end;
    }
  }
  if (done > 0) mapped.text_ += text.substr(done);
  return mapped;
}

// Each stretch of characters from U+0300 on is composed together with the character before it.
MappedText MappedText::Composed(std::string_view text) {
  MappedText mapped(text);
  const auto late = [&](size_t i) { return static_cast<uint8_t>(text[i]) >= kFirstLeadToCompose; };
  uint64_t done = 0;
  for (size_t i = 0; i < text.size();) {
    if (!late(i)) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < text.size() && (late(end) || IsContinuation(text[end])) && !JoinsNothing(text, end)) ++end;
    size_t begin = i;
    if (begin > 0 && !JoinsNothing(text, i)) --begin;
    while (IsContinuation(text[begin])) --begin;
    const std::string_view part = text.substr(begin, end - begin);
    if (const std::string composed = ComposedPart(part); composed != part) {
      mapped.Replace(done, begin, end, composed);
      done = end;
    }
    i = end;
  }
  if (done > 0) mapped.text_ += text.substr(done);
  return mapped;
}

uint64_t MappedText::Origin(uint64_t position) const {
  const auto after = std::ranges::upper_bound(changed_, position, {}, &Changed::begin);
  if (after == changed_.begin()) return position;
  const Changed& last = *std::prev(after);
  return position < last.end ? last.from_begin : last.from_end + (position - last.end);
}

size_t SpaceAtStart(std::string_view text) {
  size_t size = 0;
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view space : kSpaces)
      if (text.substr(size).starts_with(space)) {
        size += space.size();
        more = true;
      }
  }
  return size;
}

size_t SpaceAtEnd(std::string_view text) {
  size_t size = 0;
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view space : kSpaces)
      if (text.substr(0, text.size() - size).ends_with(space)) {
        size += space.size();
        more = true;
      }
  }
  return size;
}

}  // namespace cairn
