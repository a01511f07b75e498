// What a training needs to know of a SentencePiece model, read without SentencePiece, whose protobuf must not
// meet the one inside libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

struct SentencePieceFacts {
  uint64_t vocab_size = 0;
  std::optional<int32_t> eod;  // </s>
};

// `model` is the content of a .model file: a ModelProto of sentencepiece_model.proto. Errors: Corrupt.
Result<SentencePieceFacts> ReadSentencePieceFacts(std::string_view model);

}  // namespace cairn
