// verify --loss: whether two checkpoints are the same function, by the losses of both on the same batches.
//
// Both go through the same forward pass, cairn-train's in fp32 on one rank, so that equal weights have equal
// losses bit for bit, whatever topology or format they come from.
#pragma once

#include <string>
#include <vector>

#include "convert/formats/systems.h"
#include "tools/check/loss_batches.h"

namespace cairn {

// Equal weights differ by nothing. This allows for sums in another order: the mean of a batch is good to some
// 1e-7 of itself in fp32 (2^-24, 6e-8, each rounding), while a head in a wrong place, a lost bias or another
// epsilon changes the loss by 1e-5 and more.
inline constexpr double kLossTolerance = 1e-6;

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

// A loss that is not finite says nothing about the weights: it equals no other. Pure.
LossComparison Compare(Losses a, Losses b, int64_t seq_length, double tolerance);

// Evaluates both checkpoints. Errors: those of the checkpoints, the data and the trainer.
Result<LossComparison> CompareLosses(const LossOptions& options);

}  // namespace cairn
