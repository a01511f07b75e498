// The facts of a tokenizer that a training on tokenized data needs: the number of its tokens, and the one
// that ends a document.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

struct TokenizerFacts {
  uint64_t vocab_size = 0;     // ids are below
  std::optional<int32_t> eod;  // nothing: it has none
};

// A tokenizer of Hugging Face. `files` by name: tokenizer.json, or else vocab.json with merges.txt. The end
// of a document is the eos_token of tokenizer_config.json, or else that of GPT-2, BLOOM or LLaMA-3. Errors:
// NotFound (neither form is complete); Corrupt.
Result<TokenizerFacts> FactsOfHfTokenizer(const std::map<std::string, std::string>& files);

// `model`: the content of a SentencePiece .model file. The end of a document is its </s>. Errors: Corrupt.
Result<TokenizerFacts> FactsOfSentencePiece(std::string_view model);

}  // namespace cairn
