// An iteration: the gradients of all micro-batches, the rest of a lazy copy, the update, the log, evaluation,
// and a save that is due. Ranks see signals and clocks at different times. Each rank's votes are therefore
// numbers in the sum that carries the loss and the norm, and all ranks act on it at the same iteration.
// A step for which some rank could not read its data is undone: no counter changes, and the random state is
// restored.

#include "runtime/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <cmath>

#include "ckpt/model/canonical_modules.h"
#include "runtime/config/arguments_block.h"
#include "runtime/config/model_spec.h"
#include "runtime/control/stop_signal.h"
#include "runtime/control/watchdog.h"
#include "runtime/data/gpt_dataset.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

double TimeSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Batches of all evaluations of a training, in samples.
int64_t ValidationSamples(const TrainConfig& config, int64_t total_iterations) {
  if (config.eval_interval == 0 || config.eval_iters == 0) return 0;
  return (total_iterations / config.eval_interval + 1) * config.eval_iters * config.global_batch_size;
}

}  // namespace

Trainer::Trainer(const TrainConfig& config, const ParallelDims& dims, at::Device device,
                 CheckpointHooks* hooks, Clock::time_point start)
    : config_(config),
      dims_(dims),
      device_(device),
      hooks_(hooks),
      start_(start),
      save_now_file_(config.save_now_file),
      schedule_(config),
      lr_(config, schedule_.total_samples()),
      scaler_(config),
      engine_(config, dims, device) {
  state_.seed = config.seed;
  state_.training_samples = schedule_.total_samples();
  scaler_.Start(state_);
}

Result<std::unique_ptr<Trainer>> Trainer::Create(const TrainConfig& config, const ParallelDims& dims,
                                                 at::Device device, CheckpointHooks* hooks,
                                                 Clock::time_point start) {
  std::unique_ptr<Trainer> trainer(new Trainer(config, dims, device, hooks, start));
  const BatchSchedule& schedule = trainer->schedule_;
  const bool evaluates = config.eval_interval > 0;
  CAIRN_ASSIGN_OR_RETURN(trainer->data_,
                         OpenData(config, dims, device,
                                  {.train = schedule.total_samples(),
                                   .validation = ValidationSamples(config, schedule.total_iterations()),
                                   .test = evaluates ? config.eval_iters * config.global_batch_size : 0}));
  trainer->state_.data = trainer->data_.train_data;
  CAIRN_ASSIGN_OR_RETURN(trainer->watch_, StepWatch::Open(config, dims, device, schedule.total_iterations()));
  return trainer;
}

Status Trainer::Start() {
  DeferStopSignals();
  CAIRN_RETURN_IF_ERROR(Resume());
  watch_->Message(ArgumentsBlock(config_, dims_.topology));
  watch_->Message(fmt::format(" training {} parameters in {} with {}, {} threads a rank",
                              CountParameters(GptSpecs(config_)), Name(config_.dtype()),
                              ToString(dims_.topology), at::get_num_threads()));
  if (Finished())
    watch_->Message(
        fmt::format(" the training is complete: {} of {} iterations are done; increase --train-iters (or "
                    "--train-samples) to continue it",
                    state_.iteration, schedule_.total_iterations()));
  return hooks_ ? hooks_->Prepare(engine_.Buffers()) : OkStatus();
}

Result<TrainingEnd> Trainer::Run() {
  while (!Finished()) {
    CAIRN_RETURN_IF_ERROR(Step());
    if (unread_) {
      CAIRN_RETURN_IF_ERROR(StopUnread());
      return TrainingEnd::kUnread;
    }
    if (agreed_.alarm) return StopForCopies();
    if (state_.iteration <= trial_end_ && !std::isfinite(state_.health.loss)) {
      CAIRN_ASSIGN_OR_RETURN(const bool gave_up, GiveUpLocal());
      if (gave_up) return TrainingEnd::kGaveUpLocal;
    }
    if (config_.max_bad_iterations > 0 && bad_in_row_ >= config_.max_bad_iterations) return GiveUp();
    if (!data_.validation.empty() && state_.iteration % config_.eval_interval == 0) Evaluate();
    CAIRN_RETURN_IF_ERROR(Save(Finished()));
  }
  if (state_.iteration >= schedule_.total_iterations()) Test();
  const Status saved = hooks_ ? hooks_->Finish() : OkStatus();
  watch_->End(Saves());
  if (!Saves().alarm.empty()) return TrainingEnd::kCopiesDiffer;
  CAIRN_RETURN_IF_ERROR(saved);
  CAIRN_RETURN_IF_ERROR(DataStatus());
  return TrainingEnd::kDone;
}

// The save in which the copies differed has failed, and so would the next ones.
TrainingEnd Trainer::StopForCopies() {
  (void)hooks_->Finish();  // what failed was reported
  watch_->End(Saves());
  if (dims_.world_rank == 0)
    Say(fmt::format(
        "training stops at iteration {}: copies differ; the next start resumes from the newest step, "
        "at which they were equal",
        state_.iteration));
  return TrainingEnd::kCopiesDiffer;
}

// All ranks see the same losses, so all come here at the same iteration.
Result<TrainingEnd> Trainer::GiveUp() {
  std::string rest = "; there was nothing to save";
  if (hooks_) {
    CAIRN_ASSIGN_OR_RETURN(const std::string left, hooks_->GiveUp(state_));
    rest = "; " + left;
  }
  if (dims_.world_rank == 0)
    Say(fmt::format("training stops at iteration {}: {} (--max-bad-iterations {}){}", state_.iteration,
                    WhyUnhealthy(state_.health), config_.max_bad_iterations, rest));
  return TrainingEnd::kDiverged;
}

// Bad memory of a node may have made the step that was resumed from bad before its digests were taken. All
// ranks see the same loss.
Result<bool> Trainer::GiveUpLocal() {
  trial_end_ = 0;
  CAIRN_ASSIGN_OR_RETURN(const std::string next, hooks_->GiveUpLocal(state_));
  if (next.empty()) return false;
  watch_->End(Saves());
  if (dims_.world_rank == 0)
    Say(fmt::format(
        "training stops at iteration {}: the loss is {} within {} iterations of a resume from local "
        "steps (--save-local-trial), which are given up; {}",
        state_.iteration, state_.health.loss, config_.save_local_trial, next));
  return true;
}

// A loss that is not finite is a sign of bad weights; a skipped update that the search of the loss scale does
// not explain is one of bad weights or data. Neither changes the weights.
void Trainer::NoteHealth(const StepOutcome& outcome, bool explained) {
  Health& health = state_.health;
  health.loss = outcome.loss;
  health.grad_norm = outcome.grad_norm;
  health.skipped_iterations = outcome.overflow ? health.skipped_iterations + 1 : 0;
  const bool bad = !std::isfinite(outcome.loss) || (outcome.overflow && !explained);
  bad_in_row_ = bad ? bad_in_row_ + 1 : 0;
  health.bad_iterations = bad ? health.bad_iterations + 1 : 0;
  if (health.bad_iterations == 1) health.first_bad_iteration = state_.iteration;
  if (!bad) health.first_bad_iteration = 0;
}

Status Trainer::DataStatus() const {
  const Status status = data_.status();
  return status.ok() ? status
                     : status.WithContext(fmt::format("stopped after iteration {}", state_.iteration));
}

// The steps so far are saved; the step whose batch is not whole never happened.
Status Trainer::StopUnread() {
  if (state_.iteration > 0) CAIRN_RETURN_IF_ERROR(Save(true));
  return hooks_ ? hooks_->Finish() : OkStatus();
}

Status Trainer::Resume() {
  if (!hooks_) return OkStatus();
  StateBuffers buffers = engine_.Buffers();
  buffers.rng_state.clear();
  CAIRN_ASSIGN_OR_RETURN(const std::optional<TrainState> resumed, hooks_->Resume(buffers));
  engine_.Resumed();  // also where only the weights were taken
  if (!resumed) return OkStatus();
  if (resumed->seed != config_.seed && resumed->seed != kUnknownSeed)
    return InvalidArgument("--seed {} differs from the checkpoint's {}; the data order would change",
                           config_.seed, resumed->seed);
  if (resumed->training_samples > 0 && data_.train_set &&
      !data_.train_set->SameOrderFor(resumed->training_samples))
    watch_->Message(fmt::format(
        " the training's length changed from {} to {} samples, which changes the order of its data, "
        "as in Megatron: some samples come twice, and some never",
        resumed->training_samples, schedule_.total_samples()));
  const bool other_data = !resumed->data.empty() && !SameData(resumed->data, data_.train_data);
  if (other_data) CAIRN_RETURN_IF_ERROR(AcceptOtherData(*resumed));
  state_ = *resumed;
  if (hooks_->ResumedFromNodes()) trial_end_ = state_.iteration + config_.save_local_trial;
  state_.seed = config_.seed;
  state_.data = data_.train_data;
  if (other_data) state_.data_changes.push_back(state_.iteration);
  state_.training_samples = schedule_.total_samples();
  scaler_.Resume(state_);
  if (buffers.rng_state.empty() || config_.no_load_rng) {
    engine_.streams().Reseed(state_.iteration);
    return OkStatus();
  }
  return engine_.streams().LoadState(buffers.rng_state);
}

// Its order is of other samples: those that the checkpoint's training has already seen may occur again.
Status Trainer::AcceptOtherData(const TrainState& resumed) {
  const std::string differs =
      fmt::format("the training data are not the checkpoint's: it had [{}], this training has [{}]",
                  fmt::join(resumed.data, "; "), fmt::join(data_.train_data, "; "));
  if (!config_.allow_other_data)
    return InvalidArgument(
        "{}; give the same --data-path and --split, begin with the new ones by --reset-progress and another "
        "--save, or continue at their sample {} by --allow-other-data",
        differs, resumed.consumed_samples);
  watch_->Message(
      fmt::format(" {}; continues at sample {} (--allow-other-data)", differs, resumed.consumed_samples));
  return OkStatus();
}

Status Trainer::Step() {
  const Clock::time_point begin = Clock::now();
  Watchdog::SetStep(state_.iteration + 1);
  const int64_t batch = schedule_.BatchAt(state_.consumed_samples);
  const int64_t micro_batches = batch / (int64_t{config_.micro_batch_size} * dims_.topology.dp);
  const auto batches = [&](int64_t i) {
    const ScopedTimer timer(Timer::kBatchGenerator);
    return data_.train->Get(state_.consumed_samples, i);
  };
  const double loss_scale = state_.loss_scale;
  const std::string random = engine_.streams().SaveState();
  const StepOutcome outcome = engine_.ComputeGradients(batches, micro_batches, loss_scale, OwnVotes(),
                                                       [this] { return !DataStatus().ok(); });
  unread_ = outcome.unread;
  if (unread_) return engine_.streams().LoadState(random);
  agreed_ = outcome.votes;

  ++state_.iteration;
  state_.consumed_samples += batch;
  state_.consumed_tokens += batch * config_.seq_length;
  if (data_.epoch_samples > 0)
    state_.epoch = static_cast<int64_t>(static_cast<double>(state_.consumed_samples) / data_.epoch_samples);
  state_.skipped_iterations += outcome.overflow;
  state_.nan_iterations += !std::isfinite(outcome.loss);
  NoteHealth(outcome, scaler_.Explains(state_));
  if (hooks_) CAIRN_RETURN_IF_ERROR(hooks_->BeforeOptimizerStep());
  if (!outcome.overflow) {
    engine_.Update(outcome, lr_.At(state_.scheduled_samples), ++state_.optimizer_steps);
    state_.scheduled_samples += batch;
  }
  scaler_.Update(outcome.overflow, state_);
  if (config_.exit_interval > 0 && state_.iteration % config_.exit_interval == 0) agreed_.stop = true;
  watch_->Step({.state = state_,
                .global_batch = batch,
                .lr = lr_.At(state_.scheduled_samples),
                .loss = outcome.loss,
                .loss_scale = loss_scale,
                .grad_norm = outcome.grad_norm,
                .zeros = outcome.zeros,
                .skipped = outcome.overflow,
                .seconds = TimeSince(begin)},
               Saves());
  return OkStatus();
}

// The votes of this rank after the step. Ranks see signals and clocks at different times, so the sum
// decides.
Votes Trainer::OwnVotes() {
  const bool out_of_time =
      config_.exit_duration_in_mins > 0 && TimeSince(start_) > config_.exit_duration_in_mins * 60;
  const bool root = dims_.world_rank == 0;
  return {.stop = StopRequested() || out_of_time || (root && FindKillSwitch(config_.kill_switch_path)),
          .save_now = root && (save_now_file_.Asks() || (hooks_ && hooks_->SavesAgain())),
          .busy = hooks_ && hooks_->Busy(),
          .alarm = !Saves().alarm.empty()};
}

// The loss on the first validation set decides which steps are the best.
void Trainer::Evaluate() {
  const int64_t before =
      (state_.iteration / config_.eval_interval - 1) * config_.eval_iters * config_.global_batch_size;
  state_.validation.reset();
  for (const NamedLoader& set : data_.validation) {
    const double loss = LossOn(*set.loader, before);
    const bool first = &set == &data_.validation.front();
    watch_->Evaluation({.iteration = state_.iteration, .loss = loss, .name = set.name}, first);
    if (first && std::isfinite(loss)) state_.validation = {.iteration = state_.iteration, .loss = loss};
  }
}

void Trainer::Test() {
  for (const NamedLoader& set : data_.test)
    watch_->Evaluation(
        {.iteration = state_.iteration, .loss = LossOn(*set.loader, 0), .name = set.name, .test = true},
        false);
}

double Trainer::LossOn(DataLoader& loader, int64_t consumed_samples) {
  const int64_t per_batch =
      config_.global_batch_size / (int64_t{config_.micro_batch_size} * dims_.topology.dp);
  const auto batches = [&](int64_t i) { return loader.Get(consumed_samples, i); };
  const TimersPaused paused;
  return engine_.Evaluate(batches, config_.eval_iters * per_batch);
}

Status Trainer::Save(bool last) {
  if (!hooks_) return OkStatus();
  StateBuffers buffers = engine_.Buffers();
  CAIRN_RETURN_IF_ERROR(hooks_->AfterStep(state_, buffers, last || agreed_.save_now, agreed_.busy));
  if (agreed_.save_now && dims_.world_rank == 0) save_now_file_.Served();
  return OkStatus();
}

}  // namespace cairn
