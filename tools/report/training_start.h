// One start of a training program, from its log. A run is one start, or several that continue each other.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "tools/report/failure.h"
#include "tools/report/iteration_line.h"
#include "tools/report/run_config.h"
#include "tools/report/sample_series.h"

namespace cairn {

// The kind of lines that the samples come from; if there are several kinds, the last in this order.
enum class SampleSource { kNone, kThroughput, kPipeline, kTrainer, kIteration };

// Sums over saves.
struct SaveTimes {
  int64_t saves = 0;
  double stall_seconds = 0;  // that the training waited
  double whole_seconds = 0;  // until a restart could use them

  void Add(const SaveTimes& other) {
    saves += other.saves;
    stall_seconds += other.stall_seconds;
    whole_seconds += other.whole_seconds;
  }
};

struct TrainingStart {
  std::string file;
  RunConfig config;  // only from the log

  SampleSource source =
      SampleSource::kNone;  // with kThroughput a sample's seconds are those of one training sample
  SampleSeries series;
  int32_t first_iteration = 0;
  int64_t total = -1;  // planned iterations of the run
  int64_t first_consumed = -1;
  int64_t skipped_so_far = 0;  // by DeepSpeed's count
  double last_loss = kNoNumber;
  double last_grad_norm = kNoNumber;
  double validation_loss = kNoNumber;
  double logged_tflops_sum = 0;
  int64_t logged_tflops_lines = 0;

  double allocated_gib = 0;  // largest over ranks, 2^30 bytes
  double reserved_gib = 0;
  int64_t checkpoints = 0;
  double checkpoint_seconds = 0;  // that the training waited for them
  double longest_checkpoint_seconds = 0;
  SaveTimes memory_saves, disk_saves, run_saves;  // by cairn train, whose lines say both

  std::optional<Failure> failure;
  std::string why_empty;    // without an iteration: "no iteration", or why this is not a log
  bool done = false;        // the program reported its own end
  int64_t began_unix = -1;  // by the first and last date on the lines; seconds
  int64_t ended_unix = -1;

  bool reached_total() const { return total > 0 && !series.empty() && series.back().iteration >= total; }
};

}  // namespace cairn
