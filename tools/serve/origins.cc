#include "tools/serve/origins.h"

#include <algorithm>
#include <unordered_set>

#include "tools/serve/packet.h"

namespace cairn {
namespace {

constexpr size_t kMostKnown = 64;

using Names = std::unordered_set<std::string>;

enum class Share { kNone, kSome, kAll };

// How many of the step's `names` the training has.
Share ShareOf(const Origins::Known& step, const Names& names) {
  bool some = false, all = true;
  for (size_t i = 0; i < step.names.size(); ++i) {
    if (!names.contains(step.names[i])) continue;
    some |= step.has[i];
    all &= step.has[i];
  }
  return !some ? Share::kNone : all ? Share::kAll : Share::kSome;
}

// 0: it is not the origin.
int Likelihood(const Origins::Known& step, bool in_line, int64_t saved_as, const Names& names) {
  // Numbers ascend: a step with a higher number was only read, for example to evaluate it.
  if (in_line && step.commit.step >= saved_as) return 0;
  const Share share = ShareOf(step, names);
  if (in_line && share == Share::kAll) return 4;
  if (in_line && step.saved) return 3;
  if (in_line && share == Share::kSome) return 2;
  // One of two runs that a training saves at the same time does not come from the other.
  const bool beside = step.saved && step.commit.step >= saved_as;
  return !in_line && !beside && share == Share::kAll ? 1 : 0;
}

}  // namespace

uint64_t Origins::Now() {
  const std::lock_guard lock(mutex_);
  return ++now_;
}

void Origins::Read(Known step) {
  const std::lock_guard lock(mutex_);
  step.when = ++now_;
  const auto before = std::ranges::find_if(known_, [&](const Known& known) {
    return !known.saved && known.commit == step.commit && known.names == step.names;
  });
  if (before != known_.end()) {
    for (size_t i = 0; i < step.has.size(); ++i) step.has[i] = step.has[i] || before->has[i];
    known_.erase(before);
  }
  known_.push_back(std::move(step));
  if (known_.size() > kMostKnown) known_.erase(std::ranges::min_element(known_, {}, &Known::when));
}

void Origins::Saved(BranchedStep commit, std::vector<std::string> names, uint64_t when) {
  const std::lock_guard lock(mutex_);
  std::vector<bool> all(names.size(), true);
  // Only the last save in a run can be the origin of the next.
  std::erase_if(known_, [&](const Known& step) { return step.saved && step.commit.run == commit.run; });
  known_.push_back({std::move(commit), std::move(names), std::move(all), true, when});
}

std::optional<BranchedStep> Origins::Of(const std::string& run, int64_t step,
                                        const std::vector<std::string>& names, uint64_t when,
                                        const std::optional<BranchedStep>& newest) const {
  const Names wanted(names.begin(), names.end());
  const std::lock_guard lock(mutex_);
  const Known* best = nullptr;
  std::pair<int, uint64_t> most{0, 0};
  for (const Known& known : known_) {
    if (known.when > when) continue;
    const bool in_line = newest ? InLineOf(known.commit, *newest) : known.commit.run == run;
    const std::pair likely{Likelihood(known, in_line, step, wanted), known.when};
    if (likely.first == 0 || likely <= most) continue;
    best = &known;
    most = likely;
  }
  return best == nullptr ? std::nullopt : std::optional(best->commit);
}

nlohmann::json OriginJson(const Origins::Known& step) {
  std::vector<size_t> read;
  for (size_t i = 0; i < step.has.size(); ++i)
    if (step.has[i]) read.push_back(i);
  return {{"step", step.commit.step},
          {"run", step.commit.run},
          {"descent", DescentJson(step.commit.descent)},
          {"names", step.names},
          {"read", std::move(read)}};
}

Result<Origins::Known> ParseOrigin(const nlohmann::json& said) {
  Origins::Known step;
  CAIRN_ASSIGN_OR_RETURN(step.commit.step, IntegerAt<int64_t>(said, "step"));
  step.commit.run = said.at("run").get<std::string>();
  step.commit.descent = DescentAt(said.at("descent"));
  step.names = said.at("names").get<std::vector<std::string>>();
  step.has.resize(step.names.size());
  for (const nlohmann::json& index : said.at("read")) {
    if (!index.is_number_unsigned() || index.get<uint64_t>() >= step.has.size())
      return Corrupt("a tensor that was read has no name");
    step.has[index.get<uint64_t>()] = true;
  }
  return step;
}

}  // namespace cairn
