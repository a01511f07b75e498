// verify --loss: whether two checkpoints are the same function, by the losses of both on the same batches.
//
// Both go through the same forward pass, cairn-train's in fp32 on one rank, so that equal weights have equal
// losses bit for bit, whatever topology or format they come from.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/model.h"
#include "convert/formats/systems.h"

namespace cairn {

// Equal weights differ by nothing. This allows for sums in another order: the mean of a batch is good to some
// 1e-7 of itself in fp32 (2^-24, 6e-8, each rounding), while a head in a wrong place, a lost bias or another
// epsilon changes the loss by 1e-5 and more.
inline constexpr double kLossTolerance = 1e-6;

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
Status FitToModels(const Model& a, const Model& b, int64_t asked, LossBatches& batches);

// The prefix of an indexed dataset with the tokens: the one that was given, or one that is made in `scratch`,
// of made-up tokens (the same each time) or of a file with a document a line. Errors: NotFound;
// InvalidArgument naming the line that is not of token ids.
Result<std::string> DatasetOf(FileSystem& fs, const LossBatches& batches, const std::string& scratch);

struct LossOptions {
  std::string a, b;
  OpenOptions open;
  std::string batches;                // PREFIX[:N], mock:N, FILE.txt[:N]
  int64_t seq_length = 0;             // 0: the positions that both have, at most kDefaultSeqLength
  double tolerance = kLossTolerance;  // of each batch's loss, relative to A's
  bool show_progress = false;         // on stderr
};

struct Losses {
  std::string name;  // of the checkpoint
  std::vector<double> batches;

  double mean() const;
};

struct LossComparison {
  Losses a, b;
  int64_t seq_length = 0;
  double largest = 0;  // difference, as a share of the loss
  size_t worst = 0;    // batch
  bool equal = true;   // within the tolerance
};

// A loss that is not finite shows nothing about the weights: it equals no other. Pure.
LossComparison Compare(Losses a, Losses b, int64_t seq_length, double tolerance);

// Evaluates both checkpoints. Errors: those of the checkpoints, the data and the trainer.
Result<LossComparison> CompareLosses(FileSystem& fs, const LossOptions& options);

}  // namespace cairn
