// Rank 0 lists the steps to try: those of the run directory and the local ones, newest first, or those of
// --load if the run directory has none. It leaves out the unhealthy ones. All ranks get the list, and load
// one step after the other (load_state.h). A step counts only if every rank loaded its part, so no two ranks
// continue from different steps. Damage leads to the next step; any other error ends the start.

#include "runtime/saving/resume.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ckpt/base/byte_codec.h"
#include "ckpt/base/canonical_path.h"
#include "ckpt/base/stopwatch.h"
#include "ckpt/base/this_process.h"
#include "ckpt/job/job_ranks.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/model.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/step_hold.h"
#include "ckpt/step/find_step.h"
#include "runtime/control/console.h"
#include "runtime/saving/load_state.h"

namespace cairn {
namespace {

const Stopwatch launched;  // when this program began

// Iteration and data stay. The schedule and the loss scale belong to the optimizer, as in Megatron.
TrainState WithoutOptimizer(TrainState state) {
  const TrainState begins;
  state.optimizer_steps = begins.optimizer_steps;
  state.scheduled_samples = begins.scheduled_samples;
  state.loss_scale = begins.loss_scale;
  state.loss_scale_good_steps = begins.loss_scale_good_steps;
  state.loss_scale_hysteresis = begins.loss_scale_hysteresis;
  return state;
}

// Checks that its model computes the function that is trained: names and shapes do not show that.
Status CheckFunction(const Model& model, const Model& trained) {
  if (trained.empty() || model.empty()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(FunctionIsStated(model));
  if (model.architecture && model.architecture != trained.architecture)
    return NotSupported("it is a model of the family {}, but this training computes {}",
                        TextOfFamily(model.architecture).get<std::string>(),
                        Or(TextOfFamily(trained.architecture), "").get<std::string>());
  const Status same = SameFunction(model, trained, "this training");
  return same.ok()
             ? same
             : NotSupported("{}; leave the flags of the model out to train it unchanged", same.message());
}

}  // namespace

// Adds the current steps of a run directory, newest first.
Status Resumer::AddSteps(const std::string& run_dir, std::vector<Candidate>& candidates) {
  const bool own = run_dir == config_.save;
  std::optional<BranchedStep> note;
  if (own) {
    CAIRN_ASSIGN_OR_RETURN(note, ReadLocalNote(fs_, run_dir));
  }
  CAIRN_ASSIGN_OR_RETURN(ResumeSteps steps, StepsToResume(fs_, run_dir, run_, own ? local_ : nullptr, note));
  if (own) newest_ = steps.newest, unseen_branch_ = steps.unseen_branch;
  if (const std::string why = steps.GivenUp(); own && !why.empty()) Say(why);
  for (ResumeStep& step : steps.steps) candidates.push_back({std::move(step)});
  return OkStatus();
}

Status Resumer::AddLoad(std::vector<Candidate>& candidates) {
  const size_t before = candidates.size();
  const std::string place = FindStep(fs_, config_.load).directory;
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(place));
  if (!info.is_directory())
    return NotSupported("{} is a file, but --load takes a step or run directory", config_.load);
  if (fs_.Stat(JoinPath(place, kManifestName)).ok()) {
    const auto step = StepReader::Open(fs_, config_.load);
    const std::optional<Health> health = step.ok() ? HealthOf((*step)->manifest().state) : std::nullopt;
    candidates.push_back({{.directory = config_.load, .unhealthy = health ? WhyUnhealthy(*health) : ""}});
  } else {
    CAIRN_RETURN_IF_ERROR(AddSteps(config_.load, candidates));
  }
  if (candidates.size() == before) return NotFound("{}: no committed step here", config_.load);
  for (size_t i = before; i < candidates.size(); ++i) candidates[i].weights_only = config_.finetune;
  return OkStatus();
}

// Steps to try, best first. Those of --save win over --load: the same command line continues where it
// stopped. If --load is the same directory, the first start has none.
Result<std::vector<Resumer::Candidate>> Resumer::Candidates() {
  std::vector<Candidate> candidates;
  if (!config_.save.empty()) CAIRN_RETURN_IF_ERROR(AddSteps(config_.save, candidates));
  const bool has_steps = std::ranges::any_of(candidates, [](const Candidate& c) { return !c.local; });
  if (!has_steps) {
    if (candidates.empty()) CAIRN_RETURN_IF_ERROR(StepsAreGone());
    const bool own = !config_.save.empty() && CanonicalPath(config_.load) == CanonicalPath(config_.save);
    if (!config_.load.empty() && !own) CAIRN_RETURN_IF_ERROR(AddLoad(candidates));
  }
  CAIRN_RETURN_IF_ERROR(LeaveOutUnhealthy(candidates));
  return candidates;
}

Status Resumer::LeaveOutUnhealthy(std::vector<Candidate>& candidates) const {
  if (config_.load_unhealthy) return OkStatus();
  std::vector<Candidate> healthy;
  for (const Candidate& candidate : candidates) {
    if (candidate.unhealthy.empty()) healthy.push_back(candidate);
    if (!candidate.unhealthy.empty() && healthy.empty())
      Say(fmt::format("skipping {}: unhealthy ({})", candidate.Name(), candidate.unhealthy));
  }
  if (healthy.empty() && !candidates.empty())
    return InvalidArgument(
        "{}: none of its steps is healthy; to resume from the newest anyway, give --load-unhealthy",
        config_.save.empty() ? config_.load : config_.save);
  candidates = std::move(healthy);
  return OkStatus();
}

// An error if --save once had steps: only the user may start again at iteration 0.
Status Resumer::StepsAreGone() const {
  const std::optional<int64_t> latest = LatestOf(fs_, config_.save);
  if (!latest || config_.start_anew) return OkStatus();
  return NotFound(
      "{}: 'latest' names step {}, but there are no steps; bring them back (cairn archive restore), or start "
      "at iteration 0 with --start-anew",
      config_.save, *latest);
}

void Resumer::ReportMissingNewest(const Resumed& resumed) const {
  const std::optional<int64_t> latest = LatestOf(fs_, config_.save);
  if (!latest || resumed.state.iteration >= *latest) return;
  if (fs_.Stat(JoinPath(config_.save, StepDirName(*latest))).ok()) return;
  Say(fmt::format("{}: 'latest' names step {}, which no longer exists", config_.save, *latest));
}

// Collective: rank 0's candidates, on every rank.
Result<std::vector<Resumer::Candidate>> Resumer::ShareCandidates() {
  const auto list = [&]() -> Result<std::string> {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates, Candidates());
    ByteWriter out;
    for (const Candidate& candidate : candidates) {
      candidate.Encode(out);
      out.Put(candidate.weights_only);
    }
    return std::move(out).Take();
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string text, FromRoot(control_, "steps to resume from", list));
  std::vector<Candidate> candidates;
  for (ByteReader in(text); in.left() > 0 && in.ok();)
    candidates.push_back({ResumeStep::Decode(in), in.Get<bool>()});
  return candidates;
}

// Whether it is a step of --save.
bool Resumer::IsOfSave(const Candidate& candidate) const {
  return !config_.save.empty() && candidate.directory.starts_with(config_.save + "/");
}

// The directory of the candidates: --save or --load.
std::string Resumer::PlaceOf(const std::vector<Candidate>& candidates) const {
  const bool of_save = std::ranges::any_of(candidates, [&](const Candidate& c) { return IsOfSave(c); });
  return of_save || config_.load.empty() ? config_.save : config_.load;
}

// If there are only local steps, and too much of them is lost, there is nothing to resume from.
Result<std::optional<Resumed>> Resumer::Run(StateBuffers& buffers) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates, ShareCandidates());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, control_.GatherToRoot(HostName(), "hosts"));
  bool lost_local = false;
  for (const Candidate& candidate : candidates) {
    Resumed resumed{.state = {}, .lost_local = lost_local};
    const Status agreed = Agree(control_, Load(candidate, buffers, resumed), "outcome of the load");
    if (agreed.ok()) {
      if (control_.rank() == 0) Report(candidate, resumed);
      Record(hosts, &candidate, resumed.state.iteration);
      return std::optional(std::move(resumed));
    }
    if (!IsDamage(agreed.kind())) return agreed;
    if (control_.rank() == 0) Say("skipping a damaged step: " + agreed.message());
    lost_local |= candidate.local;
  }
  if (std::ranges::any_of(candidates, [](const Candidate& c) { return !c.local; }))
    return Corrupt(
        "{}: none of its {} steps can be loaded; check them with `cairn verify`, or move it away to start "
        "again",
        PlaceOf(candidates), candidates.size());
  const auto check = [&]() -> Result<std::string> {
    CAIRN_RETURN_IF_ERROR(StepsAreGone());
    return std::string();
  };
  CAIRN_RETURN_IF_ERROR(FromRoot(control_, "steps that are gone", check).status());
  Record(hosts, nullptr, -1);
  return std::optional<Resumed>();
}

// A start among the run's events, on rank 0.
void Resumer::Record(const std::vector<std::string>& hosts, const Candidate* from, int64_t iteration) const {
  if (record_ == nullptr || config_.save.empty()) return;
  const std::set<std::string> each(hosts.begin(), hosts.end());
  RunEvent start{.hosts = {each.begin(), each.end()},
                 .ranks = static_cast<int64_t>(hosts.size()),
                 .local = local_ != nullptr,
                 .seconds = launched.Seconds(),
                 .step = iteration};
  if (from != nullptr) {
    start.tier = from->local ? "local" : IsOfSave(*from) ? "run" : "load";
    const auto manifest = fs_.Stat(JoinPath(from->directory, kManifestName));
    if (!from->local && manifest.ok())
      start.step_time = static_cast<double>(manifest->modified_unix_nanoseconds) / 1e9;
  }
  record_->Start(std::move(start));
}

void Resumer::Report(const Candidate& candidate, const Resumed& resumed) const {
  const std::string what = candidate.Name();
  if (!resumed.weights_only) ReportMissingNewest(resumed);
  Say(resumed.weights_only ? fmt::format("starts with the weights of {}", what)
                           : fmt::format("resumed from {} (iteration {})", what, resumed.state.iteration));
  const bool of_load =
      candidate.directory == config_.load || CanonicalPath(config_.load) == CanonicalPath(config_.save);
  if (!config_.load.empty() && !of_load && IsOfSave(candidate))
    Say(fmt::format("--load {} was not read, because {} has steps; to start from it, give another --save",
                    config_.load, config_.save));
  if (!resumed.missing.empty())
    Say(fmt::format("{}: written by another program, without {}; these begin as in a new training", what,
                    fmt::join(resumed.missing, ", ")));
}

Status Resumer::Load(const Candidate& candidate, StateBuffers& buffers, Resumed& resumed) {
  resumed.weights_only = candidate.weights_only;
  if (!candidate.local) return LoadStep(fs_, candidate.directory, buffers, resumed);
  resumed.from_local = true;
  resumed.durable = candidate.drained;
  return local_->Load(candidate.step, [&](FileSystem& fs, const std::string& directory) {
    return LoadStep(fs, directory, buffers, resumed);
  });
}

Status Resumer::LoadStep(FileSystem& fs, const std::string& directory, StateBuffers& buffers,
                         Resumed& resumed) {
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs, directory));
  CAIRN_RETURN_IF_ERROR(CheckFunction(step->manifest().model, options_.model).WithContext(directory));
  if (control_.rank() == 0) RenewHold(fs, directory, step->manifest());
  resumed.commit = BranchedStep::Of(step->manifest());
  StateLoader loader(options_, *step, buffers);
  if (resumed.weights_only) return loader.LoadParts(/*weights_alone=*/true).WithContext(directory);
  // Fields that only cairn train writes are missing in steps of other programs; that is not damage.
  const nlohmann::json& state = step->manifest().state;
  Result<TrainState> loaded =
      IsOwnStep(state) ? TrainState::FromJson(state) : TrainState::FromOtherProgram(state, resumed.missing);
  if (!loaded.ok()) return loaded.status().WithContext(directory);
  resumed.continues =
      resumed.from_local ||
      (!config_.save.empty() && directory == JoinPath(config_.save, StepDirName(loaded->iteration)));
  const bool no_optimizer = config_.no_load_optim && !resumed.continues;
  CAIRN_RETURN_IF_ERROR(loader.LoadParts(no_optimizer).WithContext(directory));
  loader.LoadRng(control_.rank());
  resumed.state = no_optimizer ? WithoutOptimizer(*std::move(loaded)) : *std::move(loaded);
  resumed.save_interval = IntField(state, "save_interval");
  return OkStatus();
}

}  // namespace cairn
