#include "runtime/train_log.h"

#include <cmath>

namespace cairn {
namespace {

// JSON has no NaN or infinity.
std::string JsonNumber(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}g}", value, digits) : "null";
}

}  // namespace

double StepFlops(const TrainConfig& config, int64_t padded_vocabulary, int64_t global_batch) {
  const double passes = config.recompute() ? 4 : 3;
  const double l = config.num_layers;
  const double h = config.hidden_size;
  const double s = config.seq_length;
  const double v = static_cast<double>(padded_vocabulary);
  return 24 * passes * static_cast<double>(global_batch) * s * l * h * h *
         (1 + s / (6 * h) + v / (16 * l * h));
}

TrainLog::TrainLog(const TrainConfig& config, const Topology& topology, int64_t total_iterations)
    : config_(config), world_(topology.world()), total_iterations_(total_iterations) {
  const int64_t multiple = int64_t{config.make_vocab_size_divisible_by} * topology.tp;
  padded_vocabulary_ = (config.vocab_size + multiple - 1) / multiple * multiple;
}

// What waits for room may find some by now.
TrainLog::~TrainLog() {
  if (json_) FlushJson();
  if (events_) FlushEvents();
}

Result<std::unique_ptr<TrainLog>> TrainLog::Open(const TrainConfig& config, const Topology& topology,
                                                 int rank, int64_t total_iterations) {
  std::unique_ptr<TrainLog> log(new TrainLog(config, topology, total_iterations));
  log->writes_ = rank == topology.world() - 1;
  if (!log->writes_) return log;
  if (!config.log_json.empty()) {
    Result<LogFile> file = LogFile::Open(config.log_json);
    if (!file.ok()) return file.status().WithContext("--log-json");
    log->json_.reset(new JsonLog{std::move(file).value(), OutputHealth("--log-json " + config.log_json)});
  }
  if (!config.tensorboard_dir.empty()) {
    Result<EventWriter> writer = EventWriter::Open(FileSystem::Posix(), config.tensorboard_dir);
    if (!writer.ok()) return writer.status().WithContext("--tensorboard-dir");
    log->events_.reset(
        new Events{std::move(writer).value(), OutputHealth("--tensorboard-dir " + config.tensorboard_dir)});
  }
  return log;
}

void TrainLog::Message(const std::string& line) {
  if (writes_) Print(line + "\n");
}

void TrainLog::Add(const StepReport& report) {
  const bool finite = std::isfinite(report.loss);
  ++interval_.steps;
  interval_.samples += report.global_batch;
  interval_.losses += finite;
  interval_.loss += finite ? report.loss : 0;
  interval_.nans += !finite;
  interval_.skipped += report.skipped;
  interval_.seconds += report.seconds;
  interval_.flops += StepFlops(config_, padded_vocabulary_, report.global_batch);
}

void TrainLog::Step(const StepReport& report) {
  if (!writes_) return;
  Add(report);
  const bool interval_ends = report.state.iteration % config_.log_interval == 0;
  WriteJson(report, interval_ends);
  if (!interval_ends) return;
  Message(Line(report));
  WriteScalars(report);
  interval_ = {};
}

std::string TrainLog::Line(const StepReport& report) const {
  const Interval& i = interval_;
  const double steps = static_cast<double>(i.steps);
  const double loss = i.losses > 0 ? i.loss / static_cast<double>(i.losses) : std::nan("");
  return fmt::format(
      " iteration {:8d}/{:8d} | consumed samples: {:12d} | consumed tokens: {:12d} | elapsed time per "
      "iteration (s): "
      "{:.2f} | learning rate: {:.3E} | global batch size: {:5d} | lm loss: {:.6E} | loss scale: {:.1f} | "
      "grad norm: "
      "{:.3f} | num zeros: {:.1f} | number of skipped iterations: {:3d} | number of nan iterations: {:3d} | "
      "samples per "
      "second: {:.3f} | TFLOPs: {:.2f} |",
      report.state.iteration, total_iterations_, report.state.consumed_samples, report.state.consumed_tokens,
      i.seconds / steps, report.lr, report.global_batch, loss, report.loss_scale, report.grad_norm,
      report.zeros, i.skipped, i.nans, static_cast<double>(i.samples) / i.seconds,
      i.flops / i.seconds / world_ / 1e12);
}

void TrainLog::WriteJson(const StepReport& report, bool interval_ends) {
  if (!json_) return;
  json_->file.Add(
      fmt::format("{{\"iteration\": {}, \"loss\": {}, \"grad_norm\": {}, \"lr\": {}, \"loss_scale\": {}, "
                  "\"consumed_samples\": {}, "
                  "\"skipped\": {}, \"seconds\": {}}}\n",
                  report.state.iteration, JsonNumber(report.loss, 9), JsonNumber(report.grad_norm, 9),
                  JsonNumber(report.lr, 9), JsonNumber(report.loss_scale, 17), report.state.consumed_samples,
                  report.skipped, JsonNumber(report.seconds, 6)));
  if (!json_->health.failing() || interval_ends) FlushJson();
}

void TrainLog::FlushJson() { json_->health.Note(json_->file.Flush(), json_->file.lost()); }

void TrainLog::FlushEvents() { events_->health.Note(events_->writer.Flush(), events_->writer.lost()); }

void TrainLog::WriteScalars(const StepReport& report) {
  if (!events_) return;
  const auto add = [&](const char* tag, double value) {
    events_->writer.AddScalar(tag, report.state.iteration, static_cast<float>(value));
  };
  add("lm loss", report.loss);
  add("learning rate", report.lr);
  add("batch size", static_cast<double>(report.global_batch));
  add("grad norm", report.grad_norm);
  add("loss scale", report.loss_scale);
  add("iteration time", interval_.seconds / static_cast<double>(interval_.steps));
  add("samples per second", static_cast<double>(interval_.samples) / interval_.seconds);
  FlushEvents();
}

void TrainLog::Evaluation(int64_t iteration, double loss) {
  if (!writes_) return;
  const std::string line =
      fmt::format(" validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ",
                  iteration, loss, std::exp(std::min(20.0, loss)));
  const std::string dashes(line.size(), '-');
  Message(fmt::format("{}\n{}\n{}", dashes, line, dashes));
  if (!events_) return;
  events_->writer.AddScalar("lm loss validation", iteration, static_cast<float>(loss));
  FlushEvents();
}

}  // namespace cairn
