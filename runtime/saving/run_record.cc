#include "runtime/saving/run_record.h"

#include <chrono>

#include "ckpt/base/stopwatch.h"
#include "runtime/control/console.h"

namespace cairn {
namespace {

constexpr int kSavesOfAStart = 3;
const Stopwatch launched;  // when this program began

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Append(FileSystem& fs, const std::string& run_dir, const RunEvent& event) {
  const Status appended = AppendEvent(fs, run_dir, event);
  if (!appended.ok()) Say("the record of the run's events misses a line: " + appended.message());
}

}  // namespace

void RecordStart(FileSystem& fs, const std::string& run_dir, RunEvent start) {
  start.kind = RunEventKind::kStart;
  start.time = Now();
  start.seconds = launched.Seconds();
  Append(fs, run_dir, start);
}

void RecordEnd(const std::string& run_dir, const std::string& how, const Status& why) {
  Append(FileSystem::Posix(), run_dir,
         {.kind = RunEventKind::kEnd, .time = Now(), .how = how, .why = why.message()});
}

void SaveRecord::Note(const SaveStats& stats) {
  if (run_dir_.empty() || recorded_ == kSavesOfAStart || !stats.seconds) return;
  if (stats.durable_iteration == newest_) return;
  newest_ = stats.durable_iteration.value_or(-1);
  ++recorded_;
  Append(FileSystem::Posix(), run_dir_,
         {.kind = RunEventKind::kSave,
          .time = Now(),
          .seconds = *stats.seconds,
          .step = newest_,
          .stall = stats.stall_seconds.value_or(0)});
}

}  // namespace cairn
