// A text that was changed in places, and where its bytes come from: invalid UTF-8 replaced, or normalized.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

class MappedText {
 public:
  // As Python's bytes.decode(errors="replace"): U+FFFD for each longest start of a character that is cut off,
  // and for each other byte that belongs to none.
  static MappedText ValidUtf8(std::string_view text);
  // Canonically composed (NFC). `text` is valid UTF-8.
  static MappedText Composed(std::string_view text);

  // A view of the original if nothing changed: valid as long as that.
  std::string_view text() const { return changed_.empty() ? original_ : std::string_view(text_); }
  // The place in the original of the byte at `position` of text(); inside of a change: its start. The end of
  // text() comes from the end.
  uint64_t Origin(uint64_t position) const;

 private:
  // A changed part: its place in text() and in the original.
  struct Changed {
    uint64_t begin, end;
    uint64_t from_begin, from_end;
  };

  explicit MappedText(std::string_view original) : original_(original) {}
  // The original from `done` to `begin`, and then `replacement` for the original from `begin` to `end`.
  void Replace(uint64_t done, uint64_t begin, uint64_t end, std::string_view replacement);

  std::string_view original_;
  std::string text_;
  std::vector<Changed> changed_;
};

// Characters of the property White_Space, of valid UTF-8: how many bytes of them `text` starts or ends with.
size_t SpaceAtStart(std::string_view text);
size_t SpaceAtEnd(std::string_view text);

}  // namespace cairn
