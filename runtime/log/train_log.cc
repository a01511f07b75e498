// Each step is added to the sums of the interval. The line, the iteration time and the throughput come from
// the sums at the end of the interval; JSON and the other scalars come from the step itself. An output that
// cannot be written is noted and tried again at the end of each interval; the training never sees the error.

#include "runtime/log/train_log.h"

#include <algorithm>
#include <cmath>

#include "ckpt/model/placement.h"
#include "ckpt/step/partial_dir.h"
#include "runtime/config/model_spec.h"
#include "runtime/log/peak_tflops.h"

namespace cairn {
namespace {

// JSON has no NaN or infinity.
std::string JsonNumber(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}g}", value, digits) : "null";
}

// With --recompute-method block the first ones of each run of layers.
double RecomputedLayers(const TrainConfig& config, const Topology& topology) {
  const Result<std::vector<int>> chunks = LayersPerChunk(config.num_layers, topology);
  if (config.recompute_method != "block" || !chunks.ok()) return config.num_layers;
  int layers = 0;
  for (const int of_chunk : *chunks) layers += std::min(of_chunk, config.recompute_num_layers);
  return layers;
}

}  // namespace

Flops StepFlops(const TrainConfig& config, const Topology& topology, int64_t global_batch) {
  const Recomputation recomputed = config.recompute()                            ? Recomputation::kFull
                                   : config.recompute_granularity == "selective" ? Recomputation::kSelective
                                                                                 : Recomputation::kNone;
  return StepFlops(ShapeOf(config), topology.tp, static_cast<double>(global_batch), recomputed, kCausalPairs,
                   RecomputedLayers(config, topology));
}

TrainLog::TrainLog(const TrainConfig& config, const Topology& topology, int64_t total_iterations)
    : config_(config),
      topology_(topology),
      total_iterations_(total_iterations),
      peak_tflops_(config.peak_tflops) {
  if (peak_tflops_ == 0 && config.device == "cuda")
    peak_tflops_ = PeakTflops(GpuModel(), config.dtype()).value_or(0);
}

// The disk may now have room for the lines that wait.
TrainLog::~TrainLog() {
  if (json_) json_->Flush();
  if (events_) events_->Flush();
}

Result<std::unique_ptr<TrainLog>> TrainLog::Open(const TrainConfig& config, const Topology& topology,
                                                 int rank, int64_t total_iterations) {
  std::unique_ptr<TrainLog> log(new TrainLog(config, topology, total_iterations));
  log->writes_ = rank == topology.world() - 1;
  if (!log->writes_) return log;
  for (const std::string& place : {config.log_json, config.tensorboard_dir, config.prometheus_textfile})
    if (!place.empty()) CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(FileSystem::Posix(), place));
  if (!config.log_json.empty()) {
    auto file = LogFile::Open(config.log_json, "--log-json " + config.log_json);
    if (!file.ok()) return file.status().WithContext("--log-json");
    log->json_ = std::move(file).value();
  }
  if (!config.tensorboard_dir.empty()) {
    Result<EventWriter> writer = EventWriter::Open(config.tensorboard_dir);
    if (!writer.ok()) return writer.status().WithContext("--tensorboard-dir");
    log->events_ = std::move(writer).value();
  }
  return log;
}

void TrainLog::Message(const std::string& line) {
  if (writes_) Print(line + "\n");
}

void IntervalSums::Add(const StepReport& report, const Flops& of_step) {
  const bool finite = std::isfinite(report.loss);
  const bool counts = finite && !report.skipped;
  ++steps;
  samples += report.global_batch;
  losses += counts;
  loss += counts ? report.loss : 0;
  nans += !finite;
  skipped += report.skipped;
  seconds += report.seconds;
  flops.model += of_step.model;
  flops.hardware += of_step.hardware;
}

void TrainLog::Step(const StepReport& report) {
  if (!writes_) return;
  interval_.Add(report, StepFlops(config_, topology_, report.global_batch));
  const bool interval_ends = report.state.iteration % config_.log_interval == 0;
  WriteJson(report, interval_ends);
  AddScalars(report, interval_ends);
  if (!interval_ends) return;
  Message(Line(report));
  interval_ = {};
}

// Leaves out missing values, as Megatron-LM does: the loss if all steps were skipped, the norm of a
// gradient that overflowed, zeros that were not counted.
std::string TrainLog::Line(const StepReport& report) const {
  const IntervalSums& i = interval_;
  const double model_tflops = Tflops(i.flops.model);
  std::string line = fmt::format(
      " iteration {:8d}/{:8d} | consumed samples: {:12d} | consumed tokens: {:12d} | elapsed time per "
      "iteration (ms): {:.1f} |",
      report.state.iteration, total_iterations_, report.state.consumed_samples, report.state.consumed_tokens,
      i.seconds * 1e3 / static_cast<double>(i.steps));
  if (config_.log_throughput)
    line += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", model_tflops);
  if (peak_tflops_ > 0) line += fmt::format(" MFU (%): {:.2f} |", 100 * model_tflops / peak_tflops_);
  line += fmt::format(" learning rate: {:.6E} | global batch size: {:5d} |", report.lr, report.global_batch);
  if (i.losses > 0) line += fmt::format(" lm loss: {:.6E} |", i.loss / static_cast<double>(i.losses));
  line += fmt::format(" loss scale: {:.1f} |", report.loss_scale);
  if (!report.skipped && std::isfinite(report.grad_norm))
    line += fmt::format(" grad norm: {:.3f} |", report.grad_norm);
  if (config_.log_num_zeros_in_grad && !report.skipped)
    line += fmt::format(" num zeros: {:.1f} |", report.zeros);
  return line +
         fmt::format(
             " number of skipped iterations: {:3d} | number of nan iterations: {:3d} | samples per second: "
             "{:.3f} | model TFLOPs: {:.2f} | hardware TFLOPs: {:.2f} |",
             i.skipped, i.nans, static_cast<double>(i.samples) / i.seconds, model_tflops,
             Tflops(i.flops.hardware));
}

double TrainLog::Tflops(double flops) const { return flops / interval_.seconds / topology_.world() / 1e12; }

void TrainLog::WriteJson(const StepReport& report, bool interval_ends) {
  if (!json_) return;
  json_->Add(
      fmt::format("{{\"iteration\": {}, \"loss\": {}, \"grad_norm\": {}, \"lr\": {}, \"loss_scale\": {}, "
                  "\"consumed_samples\": {}, "
                  "\"skipped\": {}, \"seconds\": {}}}\n",
                  report.state.iteration, JsonNumber(report.loss, 9), JsonNumber(report.grad_norm, 9),
                  JsonNumber(report.lr, 9), JsonNumber(report.loss_scale, 17), report.state.consumed_samples,
                  report.skipped, JsonNumber(report.seconds, 6)));
  if (!json_->failing() || interval_ends) json_->Flush();
}

// Megatron-LM's names; each also over samples. TensorBoard shows no NaN.
void TrainLog::AddScalars(const StepReport& report, bool interval_ends) {
  if (!events_) return;
  const auto add = [&](const std::string& tag, double value) {
    if (!std::isfinite(value)) return;
    events_->AddScalar(tag, report.state.iteration, static_cast<float>(value));
    events_->AddScalar(tag + " vs samples", report.state.consumed_samples, static_cast<float>(value));
  };
  if (report.state.iteration % config_.tensorboard_log_interval == 0) {
    if (!config_.no_log_learnig_rate_to_tensorboard) add("learning-rate", report.lr);
    add("batch-size", static_cast<double>(report.global_batch));
    add("lm loss", report.loss);
    if (!config_.no_log_loss_scale_to_tensorboard) add("loss-scale", report.loss_scale);
    if (!report.skipped) add("grad-norm", report.grad_norm);
    if (!report.skipped && config_.log_num_zeros_in_grad) add("num-zeros", report.zeros);
  }
  if (interval_ends) {
    const double tflops = Tflops(interval_.flops.model);
    add("iteration-time", interval_.seconds / static_cast<double>(interval_.steps));
    add("throughput", tflops);
    if (peak_tflops_ > 0) add("mfu", tflops / peak_tflops_);
  }
  if (interval_ends || events_->pending() >= config_.tensorboard_queue_size) events_->Flush();
}

void TrainLog::Scalars(int64_t iteration, const std::vector<Scalar>& scalars) {
  if (!events_) return;
  for (const Scalar& scalar : scalars)
    events_->AddScalar(scalar.tag, iteration, static_cast<float>(scalar.value));
  events_->Flush();
}

// With all digits: equal weights have equal losses.
void TrainLog::EvaluationBatch(int64_t batch, double loss) {
  if (!json_) return;
  json_->Add(fmt::format("{{\"batch\": {}, \"loss\": {}}}\n", batch, JsonNumber(loss, 17)));
  json_->Flush();
}

// A weighted split is logged under its name, as in BigScience's Megatron-DeepSpeed.
void TrainLog::Evaluation(const EvaluationReport& report) {
  if (!writes_) return;
  const double loss = report.loss;
  const std::string& name = report.name;
  const double perplexity = std::isnan(loss) ? loss : std::exp(std::min(20.0, loss));
  const std::string line =
      fmt::format(" {} loss at iteration {}{} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ",
                  name.empty() ? "validation" : name, report.iteration, report.test ? " on test set" : "",
                  loss, perplexity);
  const std::string dashes(line.size(), '-');
  Message(fmt::format("{}\n{}\n{}", dashes, line, dashes));
  if (!events_ || !std::isfinite(loss)) return;
  const std::string tag =
      fmt::format("{}lm loss {}", name.empty() ? "" : fmt::format("lm-loss-validation/{}/", name),
                  report.test ? "test" : "validation");
  events_->AddScalar(tag, report.iteration, static_cast<float>(loss));
  events_->AddScalar(tag + " ppl", report.iteration, static_cast<float>(perplexity));
  events_->Flush();
}

}  // namespace cairn
