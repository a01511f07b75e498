// --prometheus-textfile: the progress of a training, for the textfile collector of Prometheus' node_exporter
// (whose files end in .prom). The file is replaced as a whole, so the collector never reads half of it.
// Format: https://prometheus.io/docs/instrumenting/exposition_formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/base/status.h"
#include "runtime/control/console.h"

namespace cairn {

// Unknown values are left out of the file.
struct TrainMetrics {
  std::string run;  // label of all, as several trainings may share a node; empty: none
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  double loss = 0;  // of the iteration; may be NaN or infinite
  std::optional<double> validation_loss;
  double learning_rate = 0;
  double tokens_per_second = 0;  // of all ranks
  double model_flops_per_second = 0;
  int64_t skipped_iterations = 0;  // of the training so far
  int64_t nan_iterations = 0;
  int64_t failed_saves = 0;  // of this process
  // The newest step of the run directory that this process saved.
  std::optional<int64_t> durable_iteration;
  std::optional<double> durable_unix_seconds;
  std::optional<double> save_seconds;        // from its beginning until it was durable
  std::optional<double> save_stall_seconds;  // of these, those that the training waited
};

std::string PrometheusText(const TrainMetrics& metrics);

class PrometheusFile {
 public:
  explicit PrometheusFile(std::string path);
  // A failure is reported once, as for all outputs (console.h). Nothing is synced: the next one replaces it.
  void Write(const TrainMetrics& metrics);

 private:
  const std::string path_;
  OutputHealth health_;
};

}  // namespace cairn
