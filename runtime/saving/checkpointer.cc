// A slot is the memory of one snapshot, and a save holds its slot until it is collected. All slots are
// reserved before the first save, so no save fails for lack of memory. When a step is due, it gets a free
// slot, or waits for the oldest save. A lazy copy runs in parallel with the training and is completed before
// the optimizer changes the weights. Only the training's thread touches the slots: it collects finished
// saves, reports them, and counts failures. Rank 0 decides what all ranks must agree on (the directory, the
// interval) and broadcasts it, or its error.

#include "runtime/saving/checkpointer.h"

#include "ckpt/base/parse_number.h"
#include "ckpt/io/directory_room.h"
#include "ckpt/job/copies.h"
#include "ckpt/job/job_ranks.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/save_interval.h"
#include "ckpt/run/local_branch.h"
#include "runtime/control/background_thread.h"
#include "runtime/control/console.h"
#include "runtime/saving/resume.h"
#include "runtime/saving/state_snapshot.h"
#include "runtime/saving/training_run.h"

namespace cairn {
namespace {

constexpr int64_t kAlarmAfter = 3;  // saves that failed in a row
// The work of others with local files may take longer than an answer, but not forever.
constexpr double kSessionPatience = 10;
constexpr int64_t kMaxDoublings = 10;  // of the iterations until a failed save is tried again

// The state of a training that begins with the weights and the optimizer of another.
TrainState BeforeProgress(const TrainState& other) {
  return {.optimizer_steps = other.optimizer_steps,
          .seed = kUnknownSeed,
          .loss_scale = other.loss_scale,
          .loss_scale_good_steps = other.loss_scale_good_steps,
          .loss_scale_hysteresis = other.loss_scale_hysteresis};
}

}  // namespace

Checkpointer::Checkpointer(CheckpointerOptions options, std::unique_ptr<ControlPlane> control)
    : options_(std::move(options)),
      config_(options_.config),
      control_(std::move(control)),
      interval_(config_.SaveSteps().value()),
      record_(fs_, control_->rank() == 0 ? config_.save : "", Say) {}

// A lazy copy and the sums read the trainer's memory, which may be gone after this.
Checkpointer::~Checkpointer() { (void)BeforeOptimizerStep(); }

Result<std::unique_ptr<Checkpointer>> Checkpointer::Create(CheckpointerOptions options,
                                                           std::unique_ptr<ControlPlane> control) {
  std::unique_ptr<Checkpointer> checkpointer(new Checkpointer(std::move(options), std::move(control)));
  CAIRN_ASSIGN_OR_RETURN(TrainingRun opened,
                         OpenTrainingRun(checkpointer->fs_, checkpointer->config_, *checkpointer->control_));
  checkpointer->run_ = opened.run;
  checkpointer->session_ = opened.session;
  checkpointer->lock_ = std::move(opened.lock);
  checkpointer->nonce_ = checkpointer->session_.substr(0, 8);  // of its partial directories
  if (!checkpointer->config_.save.empty())
    checkpointer->saver_ = std::make_unique<Saver>(
        checkpointer->options_, checkpointer->lock_ ? &*checkpointer->lock_ : nullptr,
        checkpointer->control_->rank() == 0 ? FindTokenizer(checkpointer->fs_, checkpointer->options_)
                                            : std::vector<BesideFile>(),
        checkpointer->control_->Create("saves"));
  CAIRN_RETURN_IF_ERROR(checkpointer->OpenLocal());
  return checkpointer;
}

// Without a local directory the training runs without the local level.
Status Checkpointer::OpenLocal() {
  if (config_.save_local.empty()) return OkStatus();
  Result<LocalPlace> place =
      OpenLocalPlace(fs_, {config_.save_local, config_.redundancy, config_.keep_last_local}, config_.save,
                     run_, nonce_, *control_, Say);
  auto peers = place.ok() ? PeerFiles::Open(fs_, control_->Create("local files", kSessionPatience),
                                            control_->timeout_seconds(), BecomeBackgroundThread)
                          : Result<std::unique_ptr<PeerFiles>>(place.status());
  if (const Status& opened = peers.status(); !opened.ok()) {  // the same on all ranks
    if (!IsDamage(opened.kind()) && opened.kind() != StatusKind::kNoSpace) return opened;
    if (control_->rank() == 0)
      Say(fmt::format("no local checkpoints: {}; all go directly to {}", opened.message(), config_.save));
    return OkStatus();
  }
  place_ = *std::move(place);
  peers_ = *std::move(peers);
  local_saver_ = std::make_unique<LocalSaver>(fs_, config_.save, *place_, options_.direct, *saver_,
                                              control_->Create("local saves"), *peers_);
  return OkStatus();
}

Result<std::optional<TrainState>> Checkpointer::Resume(StateBuffers& buffers) {
  std::optional<LocalSteps> local;
  if (place_) {
    local.emplace(fs_, *place_, nonce_, *control_, *peers_, Say);
    CAIRN_RETURN_IF_ERROR(local->Survey());
  }
  Resumer resumer(options_, run_, local ? &*local : nullptr, *control_, &record_);
  CAIRN_ASSIGN_OR_RETURN(const std::optional<Resumed> resumed, resumer.Run(buffers));
  line_.newest = resumer.newest();
  line_.unseen_branch = resumer.unseen_branch();
  if (resumed) line_.origin = resumed->commit;
  const bool gives_up = resumed && resumed->lost_local && control_->rank() == 0;
  CAIRN_RETURN_IF_ERROR(
      Agree(*control_, gives_up ? GiveUpAfter(resumed->commit) : OkStatus(), "local steps"));
  // Newer ones could not be used; this training continues without them.
  if (local)
    CAIRN_RETURN_IF_ERROR(
        local->SetAsideNewerThan(resumed && resumed->continues ? resumed->state.iteration : -1));
  if (!resumed || resumed->weights_only) return std::optional<TrainState>();
  if (interval_ < 0 && resumed->continues && resumed->save_interval > 0) interval_ = resumed->save_interval;
  origin_ = {.iteration = resumed->state.iteration,
             .run = resumed->commit.run,
             .session = resumed->state.health.session,
             .own = resumed->continues,
             .local = resumed->from_local};
  if (resumed->continues) newest_saved_ = resumed->state.iteration;
  if (!resumed->durable) undrained_ = resumed->state;
  if (resumed->continues && resumed->durable) stats_.durable_iteration = resumed->state.iteration;
  if (config_.no_load_optim && resumed->continues && control_->rank() == 0)
    Say("--no-load-optim applies only to --load; the run's own step continues with its optimizer");
  if (config_.reset_progress && !resumed->continues) return std::optional(BeforeProgress(resumed->state));
  return std::optional(resumed->state);
}

// No later start resumes from local steps after this one.
Status Checkpointer::GiveUpAfter(const std::optional<BranchedStep>& commit) {
  CAIRN_ASSIGN_OR_RETURN(line_.unseen_branch, GiveUpLocalSteps(fs_, config_.save, commit));
  return OkStatus();
}

// ---- Save ----

// Reserves the memory of all saves once: none of them fails for lack of it.
Status Checkpointer::Prepare(const StateBuffers& buffers) {
  if (config_.save.empty()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(Agree(*control_, Reserve(buffers), "snapshot memory"));
  CAIRN_RETURN_IF_ERROR(CheckSpace());
  if (control_->rank() == 0) PrintPlan();
  if (undrained_) Begin(slots_[0], *undrained_, buffers, /*durable=*/true);
  return OkStatus();
}

Status Checkpointer::Reserve(const StateBuffers& buffers) {
  tensors_ = std::make_shared<std::vector<TensorEntry>>(TensorsOf(buffers));
  if (config_.copies != "off") copy_sums_ = CopySums(buffers, options_.topology, control_->rank());
  for (int i = 0; i < (config_.save_overlap == "double" ? 2 : 1); ++i) {
    slots_.emplace_back().rng_state = buffers.rng_state;
    CAIRN_ASSIGN_OR_RETURN(slots_.back().snapshot,
                           MakeStateSnapshot(buffers, *tensors_, options_, run_, control_->rank()));
  }
  return OkStatus();
}

// Collective. A step has a shard of each rank, the index and the manifest; a codec may need less.
Status Checkpointer::CheckSpace() {
  CAIRN_ASSIGN_OR_RETURN(
      const std::vector<std::string> shards,
      control_->GatherToRoot(std::to_string(slots_[0].snapshot->plan().file_bytes()), "space for saves"));
  const auto check = [&]() -> Status {
    Room step{.files = shards.size() + 2};
    for (const std::string& bytes : shards) step.bytes += ParseNumber<uint64_t>(bytes).value_or(0);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<RoomLimit> limits, LimitsAt(fs_, config_.save));
    return CheckRoomForSteps(fs_, config_.save, step, limits);
  };
  const Status room = control_->rank() == 0 ? check() : OkStatus();
  if (room.kind() == StatusKind::kNoSpace && !config_.require_space) Say("warning: " + room.message());
  return Agree(*control_, config_.require_space ? room : OkStatus(), "space for saves");
}

void Checkpointer::PrintPlan() const {
  uint64_t bytes = 0;
  for (const TensorEntry& tensor : *tensors_) bytes += tensor.bytes();
  if (finds_interval())
    Print(interval_ > 0
              ? fmt::format(" saves every {} iterations, as found before\n", interval_)
              : fmt::format(" the first {} saves decide how often to save\n", AutoInterval::kSaves));
  Print(fmt::format(
      " checkpoints to {}: {:.3f} GB each; {} snapshot{} of {:.3f} GB of memory on rank 0; {} copies; {}\n",
      config_.save, static_cast<double>(bytes) / 1e9, slots_.size(), slots_.size() == 1 ? "" : "s",
      static_cast<double>(slots_[0].snapshot->plan().file_bytes()) / 1e9, lazy() ? "lazy" : "immediate",
      fs_.NewQueue()->engine()));
  if (local_saver_)
    Print(fmt::format(" each first to {} on its node{}\n", config_.save_local,
                      place_->group.empty() ? ", without redundancy"
                                            : fmt::format("; parity covers the loss of {}", place_->covers)));
}

bool Checkpointer::Busy() const {
  for (const Slot& slot : slots_)
    if (slot.save && !slot.save->done) return true;
  return false;
}

bool Checkpointer::SavesAgain() const {
  const bool due = stats_.failed_in_a_row > 0 && iteration_ + 1 >= again_at_;
  return config_.on_save_error == "warn" && due && drains_.empty() &&
         std::ranges::none_of(slots_, [](const Slot& slot) { return slot.save != nullptr; });
}

Status Checkpointer::AfterStep(const TrainState& state, StateBuffers& buffers, bool force, bool busy) {
  iteration_ = state.iteration;
  CollectDone();
  if (!config_.save.empty() && interval_ < 0) CAIRN_RETURN_IF_ERROR(FindInterval());
  const auto is_due = [&](int64_t interval) { return interval > 0 && state.iteration % interval == 0; };
  const bool durable = force || is_due(interval_) || (interval_ < 0 && auto_.IsDue());
  const bool worth_it = state.health.bad_iterations == 0;  // else it is evidence, only for the run directory
  const bool local = local_saver_ && worth_it && is_due(config_.save_local_interval);
  if (config_.save.empty() || !(durable || local) || state.iteration == newest_saved_) return OkStatus();
  if (busy && !force && config_.save_overlap == "skip") {
    if (control_->rank() == 0)
      Say(fmt::format("checkpoint of iteration {} skipped: the one before is still being written",
                      state.iteration));
    return OkStatus();
  }
  Begin(FreeSlot(), state, buffers, durable);
  return OkStatus();
}

Checkpointer::Slot& Checkpointer::FreeSlot() {
  Slot* oldest = &slots_[0];
  for (Slot& slot : slots_) {
    if (!slot.save) return slot;
    if (slot.save->info.identity.step < oldest->save->info.identity.step) oldest = &slot;
  }
  Collect(*oldest);
  return *oldest;
}

void Checkpointer::Begin(Slot& slot, const TrainState& state, const StateBuffers& buffers, bool durable) {
  auto save = std::make_shared<Save>();
  save->started = Save::Clock::now();
  save->info = {.identity = {run_, state.iteration},
                .topology = options_.topology,
                .model = options_.model,
                .state = state.ToJson(),
                .history = nlohmann::json::array(),
                .descent = DescentOf(state)};
  slot.line_before = line_;
  line_.origin = BranchedStep{state.iteration, run_, save->info.descent};
  if (!line_.newest || *line_.newest < *line_.origin) line_.newest = line_.origin;
  save->info.state["health"] = ToJson(HealthAt(state));
  if (finds_interval() && interval_ > 0) save->info.state["save_interval"] = interval_;
  if (options_.optimizer_facts) save->info.state.update(options_.optimizer_facts(state));
  save->nonce = fmt::format("{}{:x}", nonce_, saves_++);
  save->tensors = tensors_;
  save->snapshot = slot.snapshot.get();
  save->durable = durable;
  save->copies_may_differ = config_.copies == "warn";
  std::vector<Snapshot::Base> bases;
  std::vector<const std::byte*> memory;
  for (const StateBuffers::Part& part : buffers.parts) {
    bases.push_back({part.data, part.on_gpu});
    memory.push_back(part.data);
  }
  if (config_.copies != "off")
    save->copies =  // in the foreground: the next optimizer step waits for it
        std::async(std::launch::async, [this, memory] { return copy_sums_.Take(memory); }).share();
  slot.rng_state.assign(buffers.rng_state, 0, slot.rng_state.size());  // unlike the rest, it changes at once
  bases.push_back({reinterpret_cast<const std::byte*>(slot.rng_state.data()), false});
  if (lazy())
    slot.snapshot->CopyBehind(save->info.identity, std::move(bases));
  else
    slot.snapshot->CopyNow(save->info.identity, std::move(bases));
  copying_ = &slot;
  save->stall_seconds = SecondsSince(save->started);
  newest_saved_ = state.iteration;
  slot.save = save;
  if (local_saver_)
    local_saver_->Start(std::move(save));
  else
    saver_->Start(std::move(save));
}

// A local step that is saved again because it is not in --save is the same commit.
Descent Checkpointer::DescentOf(const TrainState& state) const {
  const bool same = line_.origin && line_.origin->run == run_ && line_.origin->step == state.iteration;
  if (same) return line_.origin->descent;
  return AfterLocalBranch(NextDescent(state.iteration, run_, line_.newest, line_.origin), state.iteration,
                          run_, line_.newest, line_.unseen_branch);
}

// The trainer's record, with the session of the step before the first bad iteration.
Health Checkpointer::HealthAt(const TrainState& state) const {
  Health health = state.health;
  health.session = state.iteration == origin_.iteration ? origin_.session : session_;
  if (health.bad_iterations > 0 && health.first_bad_iteration > origin_.iteration)
    health.accused = health.first_bad_iteration - 1 == origin_.iteration ? origin_.session : session_;
  return health;
}

Status Checkpointer::BeforeOptimizerStep() {
  if (copying_ == nullptr) return OkStatus();
  const auto start = Save::Clock::now();
  copying_->snapshot->Complete();
  if (copying_->save->copies.valid()) copying_->save->copies.wait();
  copying_->save->stall_seconds += SecondsSince(start);
  copying_ = nullptr;
  return OkStatus();
}

void Checkpointer::CollectDone() {
  for (Slot& slot : slots_)
    if (slot.save && slot.save->done) Collect(slot);
  for (; !drains_.empty() && drains_.front()->done; drains_.pop_front()) Report(*drains_.front());
}

void Checkpointer::Collect(Slot& slot) {
  if (copying_ == &slot) (void)BeforeOptimizerStep();
  slot.save->Wait();
  const std::shared_ptr<Save> save = std::move(slot.save);
  Report(*save);
  const bool newest = line_.newest && line_.newest->step == save->info.identity.step;
  if (!save->status.ok() && newest) line_ = slot.line_before;  // the next save comes from the one before
  if (!save->drain) return;
  save->drain->stall_seconds = save->stall_seconds;  // the trainer's own, which no other thread touches
  drains_.push_back(save->drain);
}

void Checkpointer::CollectAll() {
  for (Slot& slot : slots_)
    if (slot.save) Collect(slot);
  for (const auto& drain : drains_) {
    drain->Wait();
    Report(*drain);
  }
  drains_.clear();
}

// Collective at iterations that all ranks agree on.
Status Checkpointer::FindInterval() {
  auto_.Step();
  if (!auto_.MayDecide()) return OkStatus();
  CollectAll();  // all ranks learn the same of every save
  if (!auto_.Decides()) return OkStatus();
  const double beyond_local = local_saver_ ? BeyondLocal(!place_->group.empty()) : 1;
  CAIRN_ASSIGN_OR_RETURN(interval_, auto_.Choose(*control_, config_.mtbf, beyond_local));
  return OkStatus();
}

void Checkpointer::NoteDurable(const Save& save) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double ago = SecondsSince(save.started) - save.durable_seconds;  // it is collected only now
  stats_.failed_in_a_row = 0;
  stats_.durable_iteration = save.info.identity.step;
  stats_.durable_unix_seconds = std::chrono::duration<double>(now).count() - ago;
  stats_.seconds = save.durable_seconds;
  stats_.stall_seconds = save.stall_seconds;
  record_.Saved(save.info.identity.step, save.stall_seconds, save.durable_seconds);
}

void Checkpointer::NoteFailure(const Save& save) {
  ++stats_.failed;
  if (!save.durable) return;
  const int64_t in_a_row = ++stats_.failed_in_a_row;
  again_at_ = iteration_ + (int64_t{1} << std::min<int64_t>(in_a_row - 1, kMaxDoublings));
  record_.NotSaved(save.info.identity.step, save.status);
  if (control_->rank() != 0 || !stats_.alarm.empty()) return;
  std::string line = fmt::format("checkpoint of iteration {} FAILED ({} so far): {}; training continues, ",
                                 save.info.identity.step, stats_.failed, save.status.message());
  const bool warn = config_.on_save_error == "warn";
  line += warn ? fmt::format("iteration {} tries again", again_at_) : "the next interval tries again";
  if (in_a_row >= kAlarmAfter) {
    const auto& newest = stats_.durable_iteration;
    line += fmt::format("; ALARM: {} in a row failed, and {} is safe", in_a_row,
                        newest ? fmt::format("only iteration {}", *newest) : "nothing of this training");
  }
  Say(line);
}

// With --copies fail on all ranks, else on rank 0.
std::string Checkpointer::RaiseAlarm(const Save& save, std::string why) {
  const int64_t step = save.info.identity.step;
  ++stats_.copies_differ;
  if (control_->rank() == 0) {
    Say(fmt::format("checkpoint of iteration {}: {}", step, why));
    record_.Alarm(step, why);
  }
  return why;
}

// Reports a save that is still being copied from a local step, and again when it is in --save. LocalSaver
// reports its own failures.
void Checkpointer::Report(const Save& save) {
  const int64_t step = save.info.identity.step;
  if (save.durable && !save.drain && save.status.ok()) {
    auto_.Saved(save.durable_seconds, save.stall_seconds);
    NoteDurable(save);
  }
  if (save.durable && !save.drain && step >= last_collected_) {
    last_collected_ = step;
    last_outcome_ = save.status;
  }
  const std::string& failed = save.status.message();
  if (const size_t at = failed.find(kCopiesDiffer); at != failed.npos)
    stats_.alarm = RaiseAlarm(save, failed.substr(at));
  else if (!save.alarm.empty())
    (void)RaiseAlarm(save, save.alarm);
  if (!save.status.ok()) {
    newest_saved_ = -1;
    NoteFailure(save);
  } else if (control_->rank() == 0) {
    const bool local = save.drain || !save.durable;
    Print(fmt::format(
        " successfully saved checkpoint from iteration {:7} to {} (stall {:.3f} s, {} after {:.3f} s)\n",
        step, local ? config_.save_local : config_.save, save.stall_seconds, local ? "safe" : "durable",
        save.durable_seconds));
  }
}

// Does not save the bad state. But the step before the first bad iteration is healthy by its own record, so
// every start would resume from it.
Result<std::string> Checkpointer::GiveUp(const TrainState& state) {
  CAIRN_RETURN_IF_ERROR(BeforeOptimizerStep());
  (void)Finish();  // what failed was reported
  return FromRoot(*control_, "the end of the training", [&]() -> Result<std::string> {
    if (config_.save.empty()) return std::string("it saves nothing");
    CAIRN_RETURN_IF_ERROR(Condemn(state));
    return NextResume();
  });
}

Status Checkpointer::Condemn(const TrainState& state) {
  const Health health = HealthAt(state);
  const int64_t step = health.first_bad_iteration - 1;
  if (step < 0 || step < origin_.iteration || (step == origin_.iteration && !origin_.own)) return OkStatus();
  return WriteCondemnation(fs_, config_.save,
                           {.run = step == origin_.iteration ? origin_.run : run_,
                            .step = step,
                            .session = health.accused,
                            .bad_iterations = health.bad_iterations});
}

// What this start has saved came from the local step, too, as did its copy in --save.
Result<std::string> Checkpointer::GiveUpLocal(const TrainState& state) {
  CAIRN_RETURN_IF_ERROR(BeforeOptimizerStep());
  (void)Finish();  // what failed was reported
  return FromRoot(*control_, "giving up local steps", [&]() -> Result<std::string> {
    CAIRN_ASSIGN_OR_RETURN(const RunSteps run, ReadRunSteps(fs_, config_.save));
    std::vector<Condemnation> suspects;
    std::optional<BranchedStep> before;
    for (const StepFacts& step : run.steps) {
      const std::string session = step.health ? step.health->session : std::string();
      const bool copy = step.step == origin_.iteration && session == origin_.session;
      if (step.run == run_ && (session == session_ || copy))
        suspects.push_back({run_, step.step, session, state.health.bad_iterations});
      else if (step.current() && step.unhealthy.empty())
        before = step.commit();
    }
    if (!before) return std::string();
    for (const Condemnation& suspect : suspects)
      CAIRN_RETURN_IF_ERROR(WriteCondemnation(fs_, config_.save, suspect));
    CAIRN_RETURN_IF_ERROR(GiveUpAfter(before));
    record_.GaveUpLocal(origin_.iteration,
                        fmt::format("the loss of iteration {} is not finite", state.iteration));
    return NextResume();
  });
}

Result<std::string> Checkpointer::NextResume() const {
  CAIRN_ASSIGN_OR_RETURN(const RunSteps run, ReadRunSteps(fs_, config_.save));
  for (auto step = run.steps.rbegin(); step != run.steps.rend(); ++step)
    if (step->unhealthy.empty() && step->current())
      return fmt::format("the next start resumes from step {} of {}", step->step, config_.save);
  return fmt::format("{} has no healthy step", config_.save);
}

Status Checkpointer::Finish() {
  CollectAll();
  return last_outcome_.ok() ? last_outcome_ : last_outcome_.WithContext("the last checkpoint was not saved");
}

}  // namespace cairn
