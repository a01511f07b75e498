// Writes RUN/events (ckpt/run/run_events.h) while a training runs, on rank 0. A line that cannot be written
// is reported, and the training continues.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/run/run_events.h"
#include "runtime/control/train_state.h"

namespace cairn {

// Fills in the times of a start, and adds it.
void RecordStart(FileSystem& fs, const std::string& run_dir, RunEvent start);

// `how`: as RunEvent says. Call it while the run is locked.
void RecordEnd(const std::string& run_dir, const std::string& how, const Status& why);

// The first saves of a start are enough to know how long one takes.
class SaveRecord {
 public:
  // An empty `run_dir` records nothing.
  explicit SaveRecord(std::string run_dir) : run_dir_(std::move(run_dir)) {}
  // Call after every step.
  void Note(const SaveStats& stats);

 private:
  const std::string run_dir_;
  int recorded_ = 0;
  int64_t newest_ = -1;
};

}  // namespace cairn
