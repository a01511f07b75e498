// The interface of all tokenizers: text to token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

struct Token {
  int32_t id = 0;
  uint64_t begin = 0, end = 0;  // the bytes of the text that it stands for; none for a dummy prefix, say
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual uint32_t vocab_size() const = 0;
  // The token that ends a document; nullopt if the model has none.
  virtual std::optional<int32_t> eod() const = 0;
  // The tokens before and after those of each document, such as the beginning of a text.
  virtual std::vector<int32_t> before() const { return {}; }
  virtual std::vector<int32_t> behind() const { return {}; }
  // The number of the 256 bytes that have no token: text loses them, as in `tokenizers`.
  virtual int lost_bytes() const { return 0; }
  // True if a text that is cut anywhere has the tokens of its parts.
  virtual bool cuts_anywhere() const { return false; }
  // Replaces `tokens` by those of `text`. Errors: Corrupt, from the model.
  virtual Status Encode(std::string_view text, std::vector<Token>* tokens) const = 0;
};

}  // namespace cairn
