// A byte-level BPE, parsed from tokenizer.json and its companions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tokenizer/byte_bpe.h"
#include "runtime/tokenizer/word_splitter.h"

namespace cairn {

// A token that is found in the text itself before anything else is.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool takes_space_before = false, takes_space_behind = false;  // lstrip, rstrip
  bool normalized = false;                                      // looked for after the normalizer
};

struct TokenizerSpec {
  BpeModel model;
  WordSplitter splitter;
  std::vector<AddedToken> added;
  bool nfc = false;
  std::optional<int32_t> eod;
  std::vector<int32_t> before, behind;  // that the post_processor puts around a text
  uint32_t vocab_size = 0;              // ids are below
};

// `files` by name: tokenizer.json with tokenizer_config.json, or else vocab.json with merges.txt. The end of
// a document is tokenizer_config.json's eos_token, else a token that is known to be one. Errors: Corrupt;
// NotSupported, naming the unknown part.
Result<TokenizerSpec> ParseTokenizerFiles(const std::map<std::string, std::string>& files);

}  // namespace cairn
