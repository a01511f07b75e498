// A tokenizer of `cairn data` in the form that transformers' AutoTokenizer loads: tokenizer.json and
// tokenizer_config.json, of the `tokenizers` library.
#pragma once

#include <map>
#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// `model`: the content of a SentencePiece .model file. By the name of the file. Errors: Corrupt; NotSupported
// if that library has no such model: normalization tables, pieces of words or characters, spaces behind
// words.
Result<std::map<std::string, std::string>> PublishedSentencePiece(const std::string& model);

// The tokenizer of bytes: ids are bytes, 256 is <|endoftext|>.
std::map<std::string, std::string> PublishedBytes();

}  // namespace cairn
