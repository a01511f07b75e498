#include "ckpt/run/run_health.h"

#include <algorithm>

#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/run_identity.h"
#include "ckpt/step/find_step.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxCondemnationBytes = 64 << 10;

// From state["validation"], if it was evaluated at this step.
std::optional<double> ValidationLossOf(const nlohmann::json& state, int64_t step) {
  const auto found = state.find("validation");
  if (found == state.end() || !found->is_object() || !found->contains("iteration")) return std::nullopt;
  const auto loss = found->find("loss");
  if (IntField(*found, "iteration") != step || loss == found->end() || !loss->is_number())
    return std::nullopt;
  return loss->get<double>();
}

}  // namespace

StepFacts StepFactsOf(const Manifest& manifest) {
  return {.step = manifest.step,
          .tokens = IntField(manifest.state, "consumed_tokens"),
          .health = HealthOf(manifest.state),
          .run = manifest.run,
          .epoch = IntField(manifest.state, "epoch"),
          .validation_loss = ValidationLossOf(manifest.state, manifest.step),
          .descent = manifest.descent};
}

// ---- The newest step ----

namespace {

// The newest step of the first of these runs that has steps; of any run if none has.
std::optional<BranchedStep> NewestReadable(std::span<const StepFacts> steps,
                                           const std::vector<std::string>& runs) {
  const auto owner = std::ranges::find_if(
      runs, [&](const std::string& run) { return std::ranges::count(steps, run, &StepFacts::run) > 0; });
  std::optional<BranchedStep> newest;
  for (const StepFacts& step : steps) {
    if (owner != runs.end() && step.run != *owner) continue;
    if (!newest || *newest < step.commit()) newest = step.commit();
  }
  return newest;
}

// Whether `step` came from the owner's step of that number. If that one was saved again, it came from the
// earlier save.
bool CameFrom(const BranchedStep& step, int64_t number, const RunEvidence& evidence) {
  const std::optional<Origin>& origin = step.descent.origin;
  return origin && std::ranges::count(evidence.runs, origin->run) > 0 && origin->step == number &&
         std::ranges::count(evidence.saved_again, number) == 0;
}

RunEvidence ReadEvidence(FileSystem& fs, const std::string& run_dir, std::span<const StepFacts> readable) {
  RunEvidence evidence{.runs = RunsNamedAt(fs, run_dir), .latest = LatestOf(fs, run_dir)};
  const Result<std::vector<std::string>> names = ListAtOnce(fs, run_dir);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const std::optional<int64_t> step = ParseStepDirName(name.substr(0, name.find('.')));
    const bool waits = WaitsAside(*names, name);
    if (step && !waits && ParseMarkedDirName(name) == "superseded") evidence.saved_again.push_back(*step);
    if ((waits || ParseStepDirName(name)) && std::ranges::count(readable, *step, &StepFacts::step) == 0)
      evidence.unreadable.push_back(*step);
  }
  return evidence;
}

}  // namespace

std::optional<BranchedStep> NewestCommit(std::span<const StepFacts> steps, const RunEvidence& evidence) {
  std::optional<BranchedStep> newest = NewestReadable(steps, evidence.runs);
  const std::vector<int64_t>& unreadable = evidence.unreadable;
  if (unreadable.empty() || (newest && evidence.latest == newest->step)) return newest;
  const bool named = evidence.latest && std::ranges::count(unreadable, *evidence.latest) > 0;
  const int64_t last = named ? *evidence.latest : std::ranges::max(unreadable);
  if (!newest) return BranchedStep{last, evidence.runs.empty() ? "" : evidence.runs.front()};
  if ((!named && last < newest->step) || CameFrom(*newest, last, evidence)) return newest;
  Descent descent = newest->descent;
  descent.branches.push_back({newest->run, newest->step});
  for (EarlierBranch& branch : descent.branches) branch.last = std::min(branch.last, last - 1);
  return BranchedStep{last, newest->run, {.branches = descent.branches}};
}

std::optional<BranchedStep> JudgeSteps(FileSystem& fs, const std::string& run_dir,
                                       std::vector<StepFacts>& facts) {
  std::vector<JudgedStep> judged;
  for (const StepFacts& step : facts) judged.push_back({step.step, step.health, step.run});
  std::vector<std::string> verdicts = Verdicts(judged, ReadCondemnations(fs, run_dir));
  const std::optional<BranchedStep> newest = NewestCommit(facts, ReadEvidence(fs, run_dir, facts));
  for (size_t i = 0; i < facts.size(); ++i) {
    facts[i].unhealthy = std::move(verdicts[i]);
    facts[i].lineage = LineageOf(facts[i].commit(), *newest);
  }
  return newest;
}

Result<RunSteps> ReadRunSteps(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> listed, ListSteps(fs, run_dir));
  RunSteps run;
  for (const int64_t step : listed) {
    const Result<Manifest> manifest = ReadManifest(fs, JoinPath(run_dir, StepDirName(step)));
    if (!manifest.ok()) {
      run.unreadable.emplace(step, manifest.status());
      continue;
    }
    run.steps.push_back(StepFactsOf(*manifest));
    run.steps.back().step = step;
  }
  run.newest = JudgeSteps(fs, run_dir, run.steps);
  return run;
}

Status CheckSameRun(FileSystem& fs, const std::string& run_dir, const BranchedStep& commit) {
  CAIRN_ASSIGN_OR_RETURN(const RunSteps there, ReadRunSteps(fs, run_dir));
  const std::vector<std::string> runs = RunsNamedAt(fs, run_dir);
  for (const StepFacts& step : there.steps) {
    // Conversions of other systems' checkpoints have a run and no history: they may lie beside each other.
    const bool plain = runs.empty() && step.descent == Descent() && commit.descent == Descent();
    if (step.run == commit.run || plain || (!runs.empty() && runs.front() == commit.run)) continue;
    return InvalidArgument("{} has steps of another run, {}; choose another directory for step {} of {}",
                           run_dir, step.run.substr(0, 8), commit.step, commit.run.substr(0, 8));
  }
  return OkStatus();
}

// ---- Condemned steps ----

std::vector<Condemnation> ReadCondemnations(FileSystem& fs, const std::string& run_dir) {
  const std::string directory = JoinPath(run_dir, kHealthName);
  const Result<std::vector<std::string>> names = fs.List(directory);
  std::vector<Condemnation> condemned;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (!name.ends_with(".json")) continue;
    const Result<std::string> text = ReadSmallFile(fs, JoinPath(directory, name), kMaxCondemnationBytes);
    if (!text.ok()) continue;
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step")) continue;
    condemned.push_back({.run = TextField(json, "run"),
                         .step = IntField(json, "step"),
                         .session = TextField(json, "session"),
                         .bad_iterations = IntField(json, "bad_iterations")});
  }
  return condemned;
}

Status WriteCondemnation(FileSystem& fs, const std::string& run_dir, const Condemnation& condemned) {
  const std::string directory = JoinPath(run_dir, kHealthName);
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, directory));
  const nlohmann::json json = {{"run", condemned.run},
                               {"step", condemned.step},
                               {"session", condemned.session},
                               {"bad_iterations", condemned.bad_iterations}};
  // Nobody else writes it: the caller holds the run's lock.
  return ReplaceSmallFile(fs, JoinPath(directory, StepDirName(condemned.step) + ".json"),
                          json.dump(1) + "\n");
}

}  // namespace cairn
