#include "ckpt/run/run_health.h"

#include <algorithm>

#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/run_dir.h"

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
          .unhealthy = {},
          .health = HealthOf(manifest.state),
          .run = manifest.run,
          .epoch = IntField(manifest.state, "epoch"),
          .validation_loss = ValidationLossOf(manifest.state, manifest.step),
          .branches = manifest.branches};
}

void JudgeSteps(FileSystem& fs, const std::string& run_dir, std::vector<StepFacts>& facts) {
  std::vector<JudgedStep> judged;
  std::vector<BranchedStep> commits;
  for (const StepFacts& step : facts) {
    judged.push_back({step.step, step.health, step.run});
    commits.push_back({step.step, step.branches});
  }
  std::vector<std::string> verdicts = Verdicts(judged, ReadCondemnations(fs, run_dir));
  const std::vector<bool> superseded = Superseded(commits);
  for (size_t i = 0; i < facts.size(); ++i) {
    facts[i].unhealthy = std::move(verdicts[i]);
    facts[i].superseded = superseded[i];
  }
}

Result<std::vector<StepFacts>> ReadStepFacts(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, run_dir));
  std::vector<StepFacts> facts;
  for (const int64_t step : steps)
    if (const Result<Manifest> manifest = ReadManifest(fs, JoinPath(run_dir, StepDirName(step)));
        manifest.ok()) {
      facts.push_back(StepFactsOf(*manifest));
      facts.back().step = step;
    }
  JudgeSteps(fs, run_dir, facts);
  return facts;
}

std::optional<BranchedStep> NewestCommit(std::span<const StepFacts> steps, std::span<const int64_t> listed) {
  std::optional<BranchedStep> newest;
  for (const StepFacts& facts : steps) {
    BranchedStep step{facts.step, facts.branches};
    if (!newest || *newest < step) newest = std::move(step);
  }
  for (const int64_t step : listed) {
    if (std::ranges::binary_search(steps, step, {}, &StepFacts::step)) continue;
    if (!newest) newest.emplace();
    newest->step = std::max(newest->step, step);
  }
  return newest;
}

Result<std::optional<BranchedStep>> ReadNewestCommit(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, run_dir));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFacts> facts, ReadStepFacts(fs, run_dir));
  return NewestCommit(facts, steps);
}

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
