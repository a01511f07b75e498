// cairn-train: one rank of a training. Errors end as one line on stderr and status 2, a training that
// diverged as one line and status 1.
#include <torch/torch.h>

#include <chrono>

#include "ckpt/threads.h"
#include "runtime/checkpointer.h"
#include "runtime/console.h"
#include "runtime/cpu_settings.h"
#include "runtime/data/bus_guard.h"
#include "runtime/data/model_spec.h"
#include "runtime/launch.h"
#include "runtime/stop_signal.h"
#include "runtime/trainer.h"
#include "runtime/watchdog.h"

namespace cairn {
namespace {

constexpr int kExitDiverged = 1;
constexpr int kExitTrouble = 2;

// For the systems that a step may be converted to, in the names of torch.optim.AdamW: matrices, then vectors.
nlohmann::json ParamGroupsOf(const TrainConfig& config) {
  const auto group = [&](double weight_decay) {
    return nlohmann::json{{"lr", config.lr},
                          {"betas", {config.adam_beta1, config.adam_beta2}},
                          {"eps", config.adam_eps},
                          {"weight_decay", weight_decay}};
  };
  return {group(config.weight_decay), group(0)};
}

CheckpointerOptions CheckpointsOf(const TrainConfig& config, const Topology& topology, int device) {
  CheckpointerOptions options;
  options.save_dir = config.save;
  options.load = config.load;
  options.finetune = config.finetune;
  options.load_unhealthy = config.load_unhealthy;
  options.start_anew = config.start_anew;
  options.save_interval = config.save_interval;
  options.local = {.dir = config.save_local,
                   .redundancy = ParseRedundancy(config.redundancy).value(),  // validated
                   .keep_last = config.keep_last_local};
  options.local_interval = config.save_local_interval;
  options.lazy = config.save_mode == "lazy";
  options.overlap = config.save_overlap == "skip"     ? SaveOverlap::kSkip
                    : config.save_overlap == "double" ? SaveOverlap::kDouble
                                                      : SaveOverlap::kWait;
  options.codec = config.save_codec == "zstd"   ? CodecMode::kZstd
                  : config.save_codec == "auto" ? CodecMode::kAuto
                                                : CodecMode::kNone;
  options.codec_threads = config.save_codec_threads;
  options.split_master = config.split_master;
  options.retention = {
      .keep_last = config.keep_last, .keep_every = config.keep_every, .keep_tokens = config.keep_tokens};
  options.topology = topology;
  options.model = ModelFacts(config);
  options.param_groups = ParamGroupsOf(config);
  options.device_copy = [](void* to, const void* from, size_t bytes, bool to_device) {
    const auto view = [&](const void* data, bool on_device) {
      return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(bytes)},
                           at::TensorOptions(on_device ? at::kCUDA : at::kCPU).dtype(at::kByte));
    };
    view(to, to_device).copy_(view(from, !to_device));
  };
  // The device is this rank's current one; libtorch computes on its default stream.
  if (config.device == "cuda")
    options.device_snapshot = [device] { return NewCudaSnapshot({.device = device}); };
  return options;
}

Result<TrainingEnd> Train(const TrainConfig& config, const Topology& topology, Transport& transport,
                          std::chrono::steady_clock::time_point start) {
  const ParallelDims dims = MakeParallelDims(topology, transport);
  std::unique_ptr<Checkpointer> checkpointer;
  if (!config.save.empty() || !config.load.empty()) {
    const int device = at::Device(transport.device()).index();
    CAIRN_ASSIGN_OR_RETURN(checkpointer, Checkpointer::Create(CheckpointsOf(config, topology, device),
                                                              transport.NewControlPlane("checkpoints")));
  }
  CAIRN_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(config, dims, at::Device(transport.device()), checkpointer.get(), start));
  return trainer->Run();
}

// libtorch throws; everything else hands back a Status.
template <typename Function>
Status Guard(Function&& function) {
  try {
    return function();
  } catch (const c10::Error& error) {
    return Aborted("{}", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Aborted("{}", TextOf(error));
  }
}

void Complain(int rank, const Status& status) {
  std::string line = status.message();
  if (const size_t end = line.find('\n'); end != std::string::npos) line.resize(end);
  Say(fmt::format("rank {}: {}", rank, line));
}

int Main(int argc, char** argv) {
  const auto start = std::chrono::steady_clock::now();
  auto parsed = ParseCommandLine(argc, argv);
  if (!parsed.ok()) {
    Say(parsed.status().message());
    return kExitTrouble;
  }
  if (!parsed->text.empty()) {
    Print(parsed->text);
    return 0;
  }
  TrainConfig& config = parsed->config;
  WatchStopSignals();
  HandleBusErrors();
  KeepFreedMemory();
  SetThreads(config.threads);
  std::unique_ptr<Transport> transport;
  const Status launched = Guard([&] {
    transport = Launch({.device = config.device, .timeout_seconds = config.distributed_timeout_seconds});
    return OkStatus();
  });
  if (!launched.ok()) {  // before there are ranks
    Say(launched.message());
    return kExitTrouble;
  }
  const auto topology = Validate(config, transport->size());
  if (!topology.ok()) {  // all ranks find the same; one says it
    if (transport->rank() == 0) Complain(0, topology.status());
    return kExitTrouble;
  }
  TrainingEnd end = TrainingEnd::kDone;
  const Status trained = Guard([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(end, Train(config, *topology, *transport, start));
    return OkStatus();
  });
  if (trained.ok()) return end == TrainingEnd::kDone ? 0 : kExitDiverged;
  Complain(transport->rank(), trained);
  Watchdog::StopAllRanks(kExitTrouble);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  try {
    return cairn::Main(argc, argv);
  } catch (const std::exception& error) {  // before there are ranks
    cairn::Say(cairn::TextOf(error));
    return cairn::kExitTrouble;
  }
}
