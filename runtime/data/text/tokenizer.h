// Text to token ids: bytes, or a SentencePiece model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/file_system.h"
#include "ckpt/status.h"

namespace cairn {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual uint32_t vocab_size() const = 0;
  // The token that ends a document; nothing where the model has none.
  virtual std::optional<int32_t> eod() const = 0;
  // Replaces `tokens` by those of `text`. Errors: Corrupt, from the model.
  virtual Status Encode(std::string_view text, std::vector<int32_t>* tokens) const = 0;
};

// A token is a byte; 256 ends a document; 257 tokens in all.
std::unique_ptr<Tokenizer> MakeByteTokenizer();

// `model` is the content of a SentencePiece .model file. Its end of a document is the model's </s>, as in
// Megatron's GPTSentencePieceTokenizer. Errors: Corrupt.
Result<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(const std::string& model);

// `spec` is "bytes" or "sentencepiece:FILE". Errors: InvalidArgument, NotFound, Corrupt (naming the file).
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(FileSystem& fs, std::string_view spec);

}  // namespace cairn
