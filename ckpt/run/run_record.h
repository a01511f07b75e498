// Writes RUN/events (run_events.h) while a training runs: on rank 0, which holds the RunLock. A line that
// cannot be written is reported, and the training continues.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt/run/run_events.h"

namespace cairn {

// Safe from several threads.
class RunRecord {
 public:
  // An empty `run_dir` records nothing.
  RunRecord(FileSystem& fs, std::string run_dir, std::function<void(const std::string& line)> say)
      : fs_(fs), run_dir_(std::move(run_dir)), say_(std::move(say)) {}

  // Once; later calls do nothing. A time of 0 is now.
  void Start(RunEvent start);
  // Instead of it: the record has that start.
  void Continue();

  // The following wait for the start; without one nothing is written.

  // A save that is in the run directory. The first few of a start are enough to know how long one takes.
  void Saved(int64_t step, double stall, double seconds);
  // A save that failed, likewise.
  void NotSaved(int64_t step, const Status& why);
  // Copies of a tensor differ at the save of `step`.
  void Alarm(int64_t step, const std::string& why);
  // The steps on the nodes, of which `step` had been resumed from (-1: none). Also without a start.
  void GaveUpLocal(int64_t step, const std::string& why);
  // `how`: as RunEvent says.
  void End(const std::string& how, const std::string& why);

 private:
  void Add(RunEvent event);
  void Append(const RunEvent& event);
  void AppendWaiting();

  FileSystem& fs_;
  const std::string run_dir_;
  const std::function<void(const std::string& line)> say_;
  std::mutex mutex_;
  bool started_ = false;
  std::vector<RunEvent> waiting_;
  int saved_ = 0, failed_ = 0;  // lines of this start
};

}  // namespace cairn
