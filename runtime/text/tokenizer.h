// Text to token ids: bytes, or a SentencePiece model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"

namespace cairn {

struct Token {
  int32_t id = 0;
  uint64_t begin = 0, end = 0;  // the bytes of the text that it stands for; none for a dummy prefix, say
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual uint32_t vocab_size() const = 0;
  // The token that ends a document; nothing where the model has none.
  virtual std::optional<int32_t> eod() const = 0;
  // Whether a text cut anywhere has the tokens of its parts.
  virtual bool cuts_anywhere() const { return false; }
  // Replaces `tokens` by those of `text`. Errors: Corrupt, from the model.
  virtual Status Encode(std::string_view text, std::vector<Token>* tokens) const = 0;
};

// A token is a byte; 256 ends a document; 257 tokens in all.
std::unique_ptr<Tokenizer> MakeByteTokenizer();

// `model` is the content of a SentencePiece .model file. Its end of a document is the model's </s>, as in
// Megatron's GPTSentencePieceTokenizer. Errors: Corrupt.
Result<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(const std::string& model);

// The content of the model file that `spec` names; empty for bytes. Errors: as of MakeTokenizer.
Result<std::string> ReadTokenizerModel(FileSystem& fs, std::string_view spec);

// `spec` is "bytes" or "sentencepiece:FILE". Errors: InvalidArgument, NotFound, Corrupt (naming the file).
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(FileSystem& fs, std::string_view spec);

}  // namespace cairn
