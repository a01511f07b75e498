#include "runtime/log/prometheus_file.h"

#include <fmt/format.h>

#include <cmath>

#include "ckpt/io/replace_file.h"

namespace cairn {
namespace {

// The spelling of infinities and NaN in the format.
std::string MetricValue(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{:.17g}", value);
}
std::string MetricValue(int64_t value) { return std::to_string(value); }

std::string RunLabel(const std::string& run) {
  if (run.empty()) return "";
  std::string value;
  for (const char c : run) {
    if (c == '\\' || c == '"') value += '\\';
    value += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return fmt::format("{{run=\"{}\"}}", value);
}

struct MetricText {
  std::string label;
  std::string text = {};

  template <typename Value>
  void Add(std::string_view name, std::string_view type, std::string_view help, Value value) {
    text += fmt::format("# HELP cairn_train_{0} {1}\n# TYPE cairn_train_{0} {2}\ncairn_train_{0}{3} {4}\n",
                        name, help, type, label, MetricValue(value));
  }
  template <typename Value>
  void Add(std::string_view name, std::string_view type, std::string_view help, std::optional<Value> value) {
    if (value) Add(name, type, help, *value);
  }
};

Status ReplaceUnsynced(FileSystem& fs, const std::string& path, std::string_view bytes) {
  const std::string partial = path + std::string(kPartialSuffix);
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial));
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.Create(partial));
  CAIRN_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(bytes))));
  CAIRN_RETURN_IF_ERROR(file->Close());
  return fs.Rename(partial, path);
}

}  // namespace

std::string PrometheusText(const TrainMetrics& m) {
  MetricText out{RunLabel(m.run)};
  const TrainState& state = m.report.state;
  out.Add("iteration", "gauge", "Iterations done.", state.iteration);
  out.Add("consumed_samples", "gauge", "Samples trained on.", state.consumed_samples);
  out.Add("consumed_tokens", "gauge", "Tokens trained on.", state.consumed_tokens);
  out.Add("loss", "gauge", "Loss of the last iteration.", m.report.loss);
  out.Add("validation_loss", "gauge", "Loss of the last evaluation.", m.validation_loss);
  out.Add("learning_rate", "gauge", "Learning rate of the next update.", m.report.lr);
  out.Add("tokens_per_second", "gauge", "Tokens a second of all ranks.", m.tokens_per_second);
  out.Add("model_flops_per_second", "gauge", "Model FLOPs a second of all ranks.", m.model_flops_per_second);
  out.Add("skipped_iterations", "gauge", "Iterations whose update was skipped.", state.skipped_iterations);
  out.Add("nan_iterations", "gauge", "Iterations whose loss was not finite.", state.nan_iterations);
  out.Add("failed_saves_total", "counter", "Failed saves since the start.", m.saves.failed);
  out.Add("failed_saves_in_a_row", "gauge", "Failed saves since the last successful one.",
          m.saves.failed_in_a_row);
  out.Add("copies_differ_total", "counter", "Saves at which copies of a tensor differed between ranks.",
          m.saves.copies_differ);
  out.Add("durable_iteration", "gauge", "Iteration of the newest durable checkpoint.",
          m.saves.durable_iteration);
  out.Add("durable_timestamp_seconds", "gauge", "When that checkpoint became durable, in Unix time.",
          m.saves.durable_unix_seconds);
  out.Add("save_seconds", "gauge", "How long that checkpoint took to become durable.", m.saves.seconds);
  out.Add("save_stall_seconds", "gauge", "How long that checkpoint stopped the training.",
          m.saves.stall_seconds);
  if (m.saves.durable_iteration)
    out.Add("save_lag_iterations", "gauge", "Iterations that would be lost now.",
            state.iteration - *m.saves.durable_iteration);
  return out.text;
}

PrometheusFile::PrometheusFile(std::string path)
    : path_(std::move(path)), health_("--prometheus-textfile " + path_) {}

void PrometheusFile::Write(const TrainMetrics& metrics) {
  health_.Note(ReplaceUnsynced(FileSystem::Posix(), path_, PrometheusText(metrics)));
}

}  // namespace cairn
