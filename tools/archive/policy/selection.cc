#include "tools/archive/policy/selection.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <set>

#include "ckpt/base/glob.h"

namespace cairn {
namespace {

using TimelineSteps = std::vector<TimelineStep>;
using Hit = std::function<void(int64_t step, std::string why)>;

// The newest step of each of the last `count` periods that have one; `format` names a period (strftime, UTC).
void EachPeriod(const TimelineSteps& timeline, int64_t count, const char* format, const char* word,
                const Hit& hit) {
  std::set<std::string> periods;
  for (auto step = timeline.rbegin(); step != timeline.rend(); ++step) {
    if (step->saved_unix_seconds == 0) continue;
    const std::time_t time = step->saved_unix_seconds;
    std::tm parts{};
    ::gmtime_r(&time, &parts);
    char name[32];
    const std::string period(name, std::strftime(name, sizeof(name), format, &parts));
    if (periods.contains(period)) continue;
    if (static_cast<int64_t>(periods.size()) == count) return;
    periods.insert(period);
    hit(step->step, fmt::format("{} {}", word, period));
  }
}

void Apply(const TimelineSteps& timeline, const KeepClass& keep, const Hit& hit) {
  for (const TimelineStep& step : timeline) {
    if (keep.every > 0 && step.step % keep.every == 0) hit(step.step, fmt::format("every {}", keep.every));
    if (std::ranges::count(keep.steps, step.step) > 0) hit(step.step, "by number");
    for (const std::string& tag : step.tags)
      if (std::ranges::any_of(keep.tags, [&](const std::string& glob) { return FitsGlob(tag, glob); }))
        hit(step.step, "tagged " + tag);
  }
  const size_t last = std::min<size_t>(keep.last, timeline.size());
  for (size_t i = timeline.size() - last; i < timeline.size(); ++i)
    hit(timeline[i].step, fmt::format("last {}", keep.last));
  int64_t reached = 0;  // milestones already passed
  for (const TimelineStep& step : timeline) {
    if (keep.tokens == 0 || step.tokens / keep.tokens <= reached) continue;
    reached = step.tokens / keep.tokens;
    hit(step.step, fmt::format("{} tokens", reached * keep.tokens));
  }
  if (keep.daily > 0) EachPeriod(timeline, keep.daily, "%Y-%m-%d", "day", hit);
  if (keep.weekly > 0) EachPeriod(timeline, keep.weekly, "%G-W%V", "week", hit);
  if (keep.monthly > 0) EachPeriod(timeline, keep.monthly, "%Y-%m", "month", hit);
}

}  // namespace

void WantedForms::Add(const WantedForms& more) {
  full |= more.full;
  weights |= more.weights;
  for (const std::string& reason : more.reasons)
    if (std::ranges::find(reasons, reason) == reasons.end()) reasons.push_back(reason);
}

std::map<int64_t, WantedForms> SelectSteps(const std::vector<TimelineStep>& timeline,
                                           const std::vector<KeepClass>& classes) {
  std::map<int64_t, WantedForms> wanted;
  TimelineSteps healthy;
  for (const TimelineStep& step : timeline) {
    wanted[step.step];
    if (step.healthy) healthy.push_back(step);
  }
  for (const KeepClass& keep : classes)
    Apply(healthy, keep, [&](int64_t step, const std::string& why) {
      WantedForms& forms = wanted[step];
      (keep.keep == Form::kFull ? forms.full : forms.weights) = true;
      forms.reasons.push_back(fmt::format("{} {}", Name(keep.keep), why));
    });
  return wanted;
}

bool MayAskLater(const std::vector<TimelineStep>& timeline, const std::vector<KeepClass>& classes) {
  int64_t step = 0, tokens = 0;
  for (const TimelineStep& seen : timeline) {
    step = std::max(step, seen.step);
    tokens = std::max(tokens, seen.tokens);
  }
  return std::ranges::any_of(classes, [&](const KeepClass& keep) {
    return keep.last > 0 || !keep.tags.empty() || keep.daily > 0 || keep.weekly > 0 || keep.monthly > 0 ||
           keep.every > step || keep.tokens > tokens ||
           std::ranges::any_of(keep.steps, [&](int64_t s) { return s > step; });
  });
}

}  // namespace cairn
