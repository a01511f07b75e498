// A training with Hugging Face's Trainer, from its log.
//
// The log has a dictionary every `logging_steps` steps, without the number of the step; the bar of tqdm that
// is redrawn below it has that, and the seconds so far. The last line has the total time:
//
//   ***** Running training *****
//     Total train batch size (w. parallel, distributed & accumulation) = 8
//     Total optimization steps = 20
//   {'loss': 3.711, 'grad_norm': 1.597, 'learning_rate': 4e-05, 'epoch': 0.62}
//    25%|##5       | 5/20 [00:04<00:12,  1.17it/s]
//   {'eval_loss': 3.702, 'eval_runtime': 0.0184, ..., 'epoch': 1.25}
//   {'train_runtime': 8.841, 'train_samples_per_second': 18.1, 'train_steps_per_second': 2.262, ...,
//   'epoch': 2.5}
//
// Versions from 5 on put the numbers in quotes. Without bars, steps follow from the epochs.
#pragma once

#include <string_view>
#include <vector>

#include "tools/report/training_start.h"

namespace cairn {

class TrainerLog {
 public:
  // True if this line begins another training.
  bool BeginsAnother(std::string_view text) const;

  // Takes a line with one of the Trainer's words. True for a dictionary with a loss: the training continues.
  bool Take(std::string_view text);

  // Puts the results into `start`, unless it already has lines of a better kind.
  void Finish(TrainingStart& start);

 private:
  struct Report {
    double loss = kNoNumber, grad_norm = kNoNumber, epoch = kNoNumber;
    bool nan_loss = false;
    int64_t step = -1;           // from the bar below
    double elapsed = kNoNumber;  // seconds, likewise
  };

  void TakeBanner(std::string_view text);
  void TakeBar(std::string_view text);
  void TakeEnd(std::string_view text);
  void TakeLoss(std::string_view text);
  void FindTotal();
  int64_t StepOf(size_t report) const;
  void AddSamples(TrainingStart& start) const;

  std::vector<Report> reports_;
  bool wants_bar_ = false;  // the next bar is the last report's
  RunConfig config_;
  int64_t total_ = -1;
  double epochs_ = kNoNumber;
  double last_epoch_ = kNoNumber;
  double validation_loss_ = kNoNumber;
  double runtime_ = kNoNumber, samples_per_second_ = kNoNumber, steps_per_second_ = kNoNumber;
  int64_t checkpoints_ = 0;
};

}  // namespace cairn
