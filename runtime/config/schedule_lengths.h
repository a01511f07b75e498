// The lengths of warm-up and decay of the learning rate, in samples, as Megatron counts.
#pragma once

#include "runtime/config/train_config.h"

namespace cairn {

struct ScheduleLengths {
  double warmup = 0;
  double decay = 0;  // from the start of the training, warm-up included
};

// Requires global_batch_size. `total_samples`: of the whole training, the decay's default length.
inline ScheduleLengths ScheduleLengthsOf(const TrainConfig& c, double total_samples) {
  const auto batch = static_cast<double>(c.global_batch_size);
  ScheduleLengths lengths;
  lengths.decay = c.lr_decay_samples > 0 ? static_cast<double>(c.lr_decay_samples)
                  : c.lr_decay_iters > 0 ? static_cast<double>(c.lr_decay_iters) * batch
                                         : total_samples;
  lengths.warmup = c.lr_warmup_fraction > 0  ? c.lr_warmup_fraction * lengths.decay
                   : c.lr_warmup_samples > 0 ? static_cast<double>(c.lr_warmup_samples)
                                             : static_cast<double>(c.lr_warmup_iters) * batch;
  return lengths;
}

}  // namespace cairn
