// Cuts a text into the words that a BPE merges within: tokenizer.json's pre_tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

struct re_pattern_buffer;  // of Oniguruma

namespace cairn {

// A regular expression of the `tokenizers` library, which uses Oniguruma, too: no other engine has the same
// syntax and Unicode tables.
class WordPattern {
 public:
  // Errors: InvalidArgument (with Oniguruma's words).
  static Result<WordPattern> Compile(const std::string& expression);
  // A literal text.
  static Result<WordPattern> Literal(std::string_view text);

  // Calls `piece` for all of `text` in order: matches, and the gaps between them. Errors: Corrupt (the
  // expression takes too long for this text).
  Status ForEach(std::string_view text,
                 const std::function<void(std::string_view, bool matches)>& piece) const;

 private:
  struct Free {
    void operator()(re_pattern_buffer* pattern) const;
  };
  std::unique_ptr<re_pattern_buffer, Free> pattern_;
};

// One step of a pre_tokenizer.
struct SplitStep {
  enum class Keep { kBoth, kMatches, kGaps };
  WordPattern pattern;
  Keep keep = Keep::kBoth;
};

class WordSplitter {
 public:
  void Add(SplitStep step) { steps_.push_back(std::move(step)); }
  // Before the step that is added next a space is put before each piece that starts with none.
  void AddSpacePrefix() { space_before_ = steps_.size(); }

  // Gets a word and where it begins in the text; with `added`, its first byte is an added space.
  using WordFunction = std::function<void(std::string_view word, uint64_t at, bool added)>;
  // Calls `word` for each word in order. Errors: those of WordPattern.
  Status Split(std::string_view text, const WordFunction& word) const {
    return Walk(0, text, 0, false, word);
  }

 private:
  static constexpr size_t kNoSpace = static_cast<size_t>(-1);

  Status Walk(size_t step, std::string_view text, uint64_t at, bool added, const WordFunction& word) const;

  std::vector<SplitStep> steps_;
  size_t space_before_ = kNoSpace;
};

}  // namespace cairn
