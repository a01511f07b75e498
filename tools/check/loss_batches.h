// The batches of `cairn verify --loss`: samples of an indexed dataset, or token ids that become one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ckpt/base/status.h"

namespace cairn {

inline constexpr int64_t kDefaultBatches = 8;
inline constexpr int64_t kDefaultSeqLength = 1024;

// A batch is one sample of seq_length tokens.
struct LossBatches {
  std::string source;  // PREFIX, FILE.txt or "mock"
  int64_t count = kDefaultBatches;
  int64_t seq_length = 0;
  int64_t vocabulary = 0;  // made-up tokens are below
};

// "SOURCE" or "SOURCE:COUNT". Errors: InvalidArgument.
Result<LossBatches> ParseLossBatches(const std::string& text);

// Sets the length and the vocabulary that both models have. `asked`: the length; 0: the positions of the
// models, at most kDefaultSeqLength. Errors: InvalidArgument if a model has fewer positions.
Status FitToModels(const nlohmann::json& a, const nlohmann::json& b, int64_t asked, LossBatches& batches);

// The prefix of an indexed dataset with the tokens: the one that was given, or one that is made in `scratch`,
// of made-up tokens (the same each time) or of a file with a document a line. Errors: NotFound;
// InvalidArgument naming the line that is not of token ids.
Result<std::string> DatasetOf(const LossBatches& batches, const std::string& scratch);

}  // namespace cairn
