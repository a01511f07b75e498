#include "ckpt/run/run_record.h"

#include <chrono>
#include <utility>

namespace cairn {
namespace {

constexpr int kMostOfAKind = 3;  // saves of a start, and failures of saves

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void RunRecord::Start(RunEvent start) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(started_, true)) return;
  start.kind = RunEventKind::kStart;
  Add(std::move(start));
  AppendWaiting();
}

void RunRecord::Continue() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(started_, true)) AppendWaiting();
}

void RunRecord::AppendWaiting() {
  for (const RunEvent& event : std::exchange(waiting_, {})) Append(event);
}

void RunRecord::Saved(int64_t step, double stall, double seconds) {
  const std::lock_guard lock(mutex_);
  if (++saved_ > kMostOfAKind) return;
  Add({.kind = RunEventKind::kSave, .seconds = seconds, .step = step, .stall = stall});
}

void RunRecord::NotSaved(int64_t step, const Status& why) {
  const std::lock_guard lock(mutex_);
  if (++failed_ > kMostOfAKind) return;
  Add({.kind = RunEventKind::kNotSaved, .step = step, .why = std::string(why.message())});
}

void RunRecord::Alarm(int64_t step, const std::string& why) {
  const std::lock_guard lock(mutex_);
  Add({.kind = RunEventKind::kAlarm, .step = step, .why = why});
}

void RunRecord::GaveUpLocal(int64_t step, const std::string& why) {
  const std::lock_guard lock(mutex_);
  Append({.kind = RunEventKind::kGaveUpLocal, .time = Now(), .step = step, .why = why});
}

void RunRecord::End(const std::string& how, const std::string& why) {
  const std::lock_guard lock(mutex_);
  Add({.kind = RunEventKind::kEnd, .how = how, .why = why});
}

void RunRecord::Add(RunEvent event) {
  if (event.time == 0) event.time = Now();
  if (started_)
    Append(event);
  else
    waiting_.push_back(std::move(event));
}

void RunRecord::Append(const RunEvent& event) {
  if (run_dir_.empty()) return;
  const Status appended = AppendEvent(fs_, run_dir_, event);
  if (!appended.ok()) say_("the record of the run's events misses a line: " + appended.message());
}

}  // namespace cairn
