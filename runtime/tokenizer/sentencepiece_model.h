// A SentencePiece model, read without SentencePiece, whose protobuf must not meet the one inside libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// As sentencepiece_model.proto numbers and names them, with its defaults.
struct SentencePiece {
  enum Type : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  std::string_view text;  // in the model's content
  float score = 0;
  uint64_t type = kNormal;
};

struct SentencePieceModel {
  enum Type : uint64_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  std::vector<SentencePiece> pieces;  // by id; at least one
  uint64_t type = kUnigram;
  int32_t eos_id = 2;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool treat_whitespace_as_suffix = false;
  bool normalizes = false;  // it has a table of characters to replace

  // </s>, if it is a piece.
  std::optional<int32_t> eod() const;
};

// `content`: of a .model file, which must outlive the result. Errors: Corrupt.
Result<SentencePieceModel> ReadSentencePieceModel(std::string_view content);

}  // namespace cairn
