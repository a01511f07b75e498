// Text to token ids: bytes, a SentencePiece model, or a byte-level BPE as Hugging Face publishes it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"
#include "runtime/tokenizer/tokenizer.h"

namespace cairn {

// A token is a byte; 256 ends a document; 257 tokens in all.
std::unique_ptr<Tokenizer> MakeByteTokenizer();

// `model` is the content of a SentencePiece .model file. Its end of a document is the model's </s>, as in
// Megatron's GPTSentencePieceTokenizer. Errors: Corrupt.
Result<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(const std::string& model);

// A tokenizer that exists, with its files.
struct LoadedTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string sentencepiece;                 // content of the model file; empty: another kind
  std::map<std::string, std::string> files;  // of a byte-level BPE, as transformers loads it
};

// `spec` is "bytes", "sentencepiece:FILE", or the path of a SentencePiece model (*.model), a tokenizer.json
// or the directory of one. Errors: InvalidArgument, NotFound, NotSupported, Corrupt (naming the file).
Result<LoadedTokenizer> LoadTokenizer(FileSystem& fs, const std::string& spec);

// GPT-2's. Errors as above.
Result<LoadedTokenizer> LoadGpt2Tokenizer(FileSystem& fs, const std::string& vocab_file,
                                          const std::string& merge_file);

}  // namespace cairn
