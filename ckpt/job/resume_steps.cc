#include "ckpt/job/resume_steps.h"

#include <fmt/ranges.h>

#include <map>
#include <ranges>
#include <utility>

#include "ckpt/model/layout.h"
#include "ckpt/run/health.h"
#include "ckpt/run/run_dir.h"

namespace cairn {

void ResumeStep::Encode(ByteWriter& out) const {
  out.Put(step);
  out.Put(local);
  out.Put(drained);
  out.PutText(directory);
}

ResumeStep ResumeStep::Decode(ByteReader& in) {
  return {.step = in.Get<int64_t>(),
          .local = in.Get<bool>(),
          .drained = in.Get<bool>(),
          .directory = std::string(in.GetText())};
}

std::string ResumeSteps::GivenUp() const {
  if (given_up.empty()) return "";
  return fmt::format("local step{} {} given up: the run was continued without {}",
                     given_up.size() == 1 ? "" : "s", fmt::join(given_up, ", "),
                     given_up.size() == 1 ? "it" : "them");
}

Result<ResumeSteps> StepsToResume(FileSystem& fs, const std::string& run_dir, const std::string& run,
                                  const LocalSteps* local_steps, const std::optional<BranchedStep>& note) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, run_dir));
  CAIRN_ASSIGN_OR_RETURN(const RunSteps in_run, ReadRunSteps(fs, run_dir));
  std::vector<int64_t> local;
  if (local_steps != nullptr) local = local_steps->steps();
  std::vector<JudgedStep> judged;
  std::vector<BranchedStep> commits;
  for (const int64_t step : local) {
    judged.push_back({step, local_steps->HealthAt(step), run});
    commits.push_back({step, run, local_steps->DescentAt(step)});
  }
  for (const StepFacts& fact : in_run.steps) {
    judged.push_back({fact.step, fact.health, fact.run});
    commits.push_back(fact.commit());
  }
  const std::vector<std::string> verdicts = Verdicts(judged, ReadCondemnations(fs, run_dir));
  // Nodes that are not seen may have steps of the note's branch.
  ResumeSteps found{.steps = {}, .newest = in_run.newest, .unseen_branch = BranchOf(note)};
  std::optional<BranchedStep> last = in_run.newest;
  if (note && (!last || *last < *note)) last = note;
  for (size_t i = 0; i < local.size(); ++i) {
    if (!last || *last < commits[i]) last = commits[i];
    if (commits[i].branch() >= BranchOf(note)) found.unseen_branch = -1;
  }
  const auto is_current = [&](const BranchedStep& step) {
    return LineageOf(step, *last) == Lineage::kCurrent;
  };
  for (size_t i = 0; i < local.size(); ++i)
    if (is_current(commits[i]) && (!found.newest || *found.newest < commits[i])) found.newest = commits[i];

  std::map<std::pair<int64_t, bool>, ResumeStep> current;  // by number and whether it is local
  for (const int64_t step : steps)
    current[{step, false}] = {.step = step, .directory = JoinPath(run_dir, StepDirName(step))};
  for (const int64_t step : local) current[{step, true}] = {.step = step, .local = true};
  for (size_t i = 0; i < commits.size(); ++i) {
    const std::pair key{commits[i].step, i < local.size()};
    if (is_current(commits[i])) {
      current[key].unhealthy = verdicts[i];
      current[key].drained = key.second && std::ranges::count(commits, commits[i]) > 1;
      current[key].commit = commits[i];
    } else {
      current.erase(key);
    }
    if (key.second && !current.contains(key)) found.given_up.push_back(key.first);
  }
  for (auto& [key, step] : current | std::views::reverse) found.steps.push_back(std::move(step));
  return found;
}

}  // namespace cairn
