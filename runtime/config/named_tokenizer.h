// The tokenizer that a training's flags name, and the flags that follow from it. The data is tokenized
// already, so only its size and its end of a document are used, and its files, which are copied into each
// step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ckpt/io/file_system.h"
#include "runtime/config/train_config.h"

namespace cairn {

struct TrainingTokenizer {
  uint64_t vocab_size = 0;                   // 0: not known, --vocab-size is required
  std::optional<int32_t> eod;                // the token that ends a document; nothing: none, or not known
  std::map<std::string, std::string> files;  // by name
};

// By Megatron's flags, which may all be empty. Errors: InvalidArgument (flags that do not fit), NotFound,
// NotSupported and Corrupt (naming the file).
Result<TrainingTokenizer> OpenTrainingTokenizer(FileSystem& fs, const TrainConfig& config);

// Opens it, and fills in --vocab-size if it is not given; with --eod-mask-loss also the token that ends a
// document, from the tokenizer beside the data if no flag names one. Errors: those of OpenTrainingTokenizer;
// InvalidArgument (a vocabulary that is too small; no token that ends a document).
Result<TrainingTokenizer> TakeTokenizer(TrainConfig& config);

// Errors: InvalidArgument (--vocab-size is missing; the message has the size of the tokenizer beside the
// data).
Status CheckVocabulary(const TrainConfig& config);

}  // namespace cairn
