// The tokens of a document that comes in parts: those of the whole text at once, in memory for a few parts.
//
// A model treats the start of a text differently (LLaMA's adds a space), and the characters after a cut
// decide how those before it are merged. So windows overlap: a window's tokens count up to a place that its
// end cannot reach, and the next window begins so far before that place that its start cannot affect it,
// either. The place is one at which both have a token's border, with the same tokens around it.
#pragma once

#include "runtime/tokenizer/tokenizer.h"

namespace cairn {

inline constexpr uint64_t kEncoderWindowBytes = 1 << 20;  // of new text, at least

class DocumentEncoder {
 public:
  explicit DocumentEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Takes the next part of the document and replaces `tokens` by those that are certain by now; with `ends`
  // the document is over, and the next part begins another. Errors: Corrupt, from the model.
  Status Add(std::string_view part, bool ends, std::vector<int32_t>* tokens);

 private:
  Status Encode(std::vector<Token>* tokens) const;
  Status TakeCertainTokens(std::vector<int32_t>* tokens);

  const Tokenizer& tokenizer_;
  std::string text_;                       // of the document, from some bytes before the first without tokens
  uint64_t done_ = 0;                      // their number
  uint64_t wanted_ = kEncoderWindowBytes;  // new ones before they are looked at
};

}  // namespace cairn
