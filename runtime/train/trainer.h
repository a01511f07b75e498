// The training loop: batches, steps, logs, evaluation, and when to save and stop.
#pragma once

#include <chrono>

#include "runtime/control/request_file.h"
#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/schedules/batch_schedule.h"
#include "runtime/schedules/grad_scaler.h"
#include "runtime/schedules/lr_schedule.h"
#include "runtime/train/data_loader.h"
#include "runtime/train/engine.h"
#include "runtime/train/step_watch.h"

namespace cairn {

enum class TrainingEnd {
  kDone,
  kDiverged,      // too many bad iterations in a row (ckpt/run/health.h); a line on stderr says so
  kCopiesDiffer,  // ranks hold different copies of a tensor (ckpt/job/copies.h); likewise
  kGaveUpLocal,   // soon after a resume from the nodes its loss was not finite; likewise
  kUnread,        // some rank could not read its data: DataStatus()
};

class Trainer {
 public:
  // Builds the model and opens data and logs. Requires a validated config. `hooks` may be null: nothing is
  // saved. `start`: when the program did, for --exit-duration-in-mins. Errors: those of the data and the log
  // files; c10::Error.
  static Result<std::unique_ptr<Trainer>> Create(const TrainConfig& config, const ParallelDims& dims,
                                                 at::Device device, CheckpointHooks* hooks,
                                                 std::chrono::steady_clock::time_point start);

  // Resumes if there is something to resume from. Before Run, once.
  Status Start();

  // Trains to the end, or until it is asked to stop.
  Result<TrainingEnd> Run();

  // The failure of this rank to read its data.
  Status DataStatus() const;

 private:
  Trainer(const TrainConfig& config, const ParallelDims& dims, at::Device device, CheckpointHooks* hooks,
          std::chrono::steady_clock::time_point start);

  Status Resume();
  Status AcceptOtherData(const TrainState& resumed);
  Status Step();
  Status StopUnread();
  void Evaluate();
  void Test();
  // Over --eval-iters global batches of it.
  double LossOn(DataLoader& loader, int64_t consumed_samples);
  Status Save(bool last);
  Votes OwnVotes();
  SaveStats Saves() const { return hooks_ ? hooks_->Stats() : SaveStats(); }
  void NoteHealth(const StepOutcome& outcome, bool explained);
  Result<TrainingEnd> GiveUp();
  TrainingEnd StopForCopies();
  Result<bool> GiveUpLocal();
  bool Finished() const { return agreed_.stop || state_.iteration >= schedule_.total_iterations(); }

  const TrainConfig config_;
  const ParallelDims& dims_;
  const at::Device device_;
  CheckpointHooks* hooks_;
  std::chrono::steady_clock::time_point start_;
  SaveNowFile save_now_file_;
  TrainState state_;
  BatchSchedule schedule_;
  LrSchedule lr_;
  GradScaler scaler_;
  Engine engine_;
  DataLoaders data_;
  std::unique_ptr<StepWatch> watch_;
  int64_t trial_end_ = 0;   // the last iteration whose loss tells whether the local step was good; 0: none
  int64_t bad_in_row_ = 0;  // iterations, of this start alone
  Votes agreed_;            // of any rank, in the last step
  bool unread_ = false;     // likewise: some rank could not read its data
};

}  // namespace cairn
