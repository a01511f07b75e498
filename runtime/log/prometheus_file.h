// --prometheus-textfile: the progress of a training, for the textfile collector of Prometheus' node_exporter
// (whose files end in .prom). The file is replaced as a whole, so the collector never reads half of it.
// Format: https://prometheus.io/docs/instrumenting/exposition_formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/control/console.h"
#include "runtime/log/train_log.h"

namespace cairn {

// Unknown values are left out of the file.
struct TrainMetrics {
  std::string run;    // label of all, as several trainings may share a node; empty: none
  StepReport report;  // of the last iteration
  SaveStats saves;
  std::optional<double> validation_loss;
  double tokens_per_second = 0;  // of all ranks
  double model_flops_per_second = 0;
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
