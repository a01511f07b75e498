// verify --loss: whether two checkpoints are the same function, by the losses of both on the same batches.
//
// Both go through the same forward pass, cairn-train's in fp32 on one rank, so that equal weights have equal
// losses bit for bit, whatever topology or format they come from.
#pragma once

#include <string>

#include "convert/formats/systems.h"

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
  bool json = false;
};

inline constexpr int64_t kDefaultBatches = 8;
inline constexpr int64_t kDefaultSeqLength = 1024;

// Prints both losses. kExitCheckFailed if those of a batch differ by more than the tolerance or are not
// finite. Errors: those of the checkpoints, the data and the trainer.
Result<int> RunVerifyLoss(const LossOptions& options);

}  // namespace cairn
