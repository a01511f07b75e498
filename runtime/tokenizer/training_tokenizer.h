// The tokenizer that a training's command line names: the data is tokenized already, so only its size is
// used, and its files, which are copied into each step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// Megatron's flags; all may be empty.
struct TokenizerFlags {
  std::string type;        // --tokenizer-type
  std::string vocab_file;  // of GPT2BPETokenizer
  std::string merge_file;
  std::string model;         // --tokenizer-model: SentencePiece's, or Hugging Face's as the next
  std::string name_or_path;  // --tokenizer-name-or-path: a directory, or a tokenizer.json
};

struct TrainingTokenizer {
  uint64_t vocab_size = 0;                   // 0: not known, --vocab-size must say it
  std::optional<int32_t> eod;                // the token that ends a document; nothing: none, or not known
  std::map<std::string, std::string> files;  // by name
};

// Errors: InvalidArgument (flags that do not fit), NotFound, NotSupported and Corrupt (naming the file).
Result<TrainingTokenizer> OpenTrainingTokenizer(FileSystem& fs, const TokenizerFlags& flags);

}  // namespace cairn
