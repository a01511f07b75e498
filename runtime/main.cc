// cairn-train: one rank of a training. Errors end as one line on stderr and status 2, a training that
// diverged, or whose ranks hold different copies of a tensor, as one line and status 1, one that lost a peer
// or gave up its local steps with kExitLostPeer.
#include <ATen/ATen.h>

#include <chrono>

#include "ckpt/base/exit_code.h"
#include "ckpt/base/threads.h"
#include "ckpt/job/job_ranks.h"
#include "runtime/comm/launch.h"
#include "runtime/config/model_spec.h"
#include "runtime/config/named_tokenizer.h"
#include "runtime/control/console.h"
#include "runtime/control/request_file.h"
#include "runtime/control/stop_signal.h"
#include "runtime/control/watchdog.h"
#include "runtime/model/gemm/gemm.h"
#include "runtime/model/parameters/state_memory.h"
#include "runtime/saving/checkpointer.h"
#include "runtime/schedules/batch_schedule.h"
#include "runtime/schedules/lr_schedule.h"
#include "runtime/train/device_settings.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/starting_model.h"
#include "runtime/train/trainer.h"

namespace cairn {
namespace {

// For the systems that a step may be converted to: parameter groups in the names of torch.optim
// (matrices, then vectors) with the rate of the next update, what gradients are clipped to, and the schedule
// of the rate as Megatron keeps it.
nlohmann::json OptimizerFacts(const TrainConfig& config, const LrSchedule& schedule,
                              const TrainState& state) {
  const auto group = [&](double weight_decay) {
    nlohmann::json facts = {{"lr", schedule.At(state.scheduled_samples)}, {"weight_decay", weight_decay}};
    if (config.optimizer == "sgd") {
      facts["momentum"] = config.sgd_momentum;
    } else {
      facts["betas"] = {config.adam_beta1, config.adam_beta2};
      facts["eps"] = config.adam_eps;
    }
    return facts;
  };
  nlohmann::json facts = {{"param_groups", {group(config.weight_decay), group(0)}},
                          {"clip_grad", config.clip_grad},
                          {"lr_schedule.num_steps", state.scheduled_samples}};
  const nlohmann::json of_schedule = schedule.Facts();
  for (const auto& [name, value] : of_schedule.items()) facts["lr_schedule." + name] = value;
  return facts;
}

CheckpointerOptions CheckpointsOf(const TrainConfig& config, const TrainingTokenizer& tokenizer,
                                  const Topology& topology, int device) {
  const LrSchedule schedule(config, BatchSchedule(config).total_samples());
  CheckpointerOptions options{
      .config = config,
      .topology = topology,
      .model = ModelFacts(config),
      .tokenizer_files = tokenizer.files,
      .optimizer_facts =
          [config, schedule](const TrainState& state) { return OptimizerFacts(config, schedule, state); },
      .device_copy = CopyBetweenSides,
      .device_snapshot = {}};
  // The device is this rank's current one; libtorch computes on its default stream.
  if (config.device == "cuda")
    options.device_snapshot = [device] { return NewCudaSnapshot({.device = device}); };
  return options;
}

// libtorch throws; all other code returns a Status. As everywhere, Aborted means that a peer failed.
template <typename Function>
Status Guard(Function&& function) {
  try {
    return function();
  } catch (const c10::DistError& error) {
    return Aborted("{}", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return InvalidArgument("{}", OutOfMemoryLine(text).value_or(text));
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
}

void Complain(const Status& status) {
  std::string line = status.message();
  if (const size_t end = line.find('\n'); end != std::string::npos) line.resize(end);
  Say(line);
}

// The status of Agree, without the rank if rank 0 has the same error: then usually all ranks have it.
Status AgreeOn(ControlPlane& plane, const Status& mine, std::string_view what) {
  const Status agreed = Agree(plane, mine, what);
  const bool own =
      !mine.ok() && plane.rank() == 0 && agreed.message() == Watchdog::Name(0) + ": " + mine.message();
  return own ? mine : agreed;
}

// How the training ended on this rank. `together`: all ranks have the same failure, so one reports it and all
// exit normally; otherwise the others do not know about it.
struct Outcome {
  Status status;
  bool together = false;
  TrainingEnd end = TrainingEnd::kDone;
};

// Mistakes of the user show before the first step, or in the data. Every rank takes part in the same
// agreements, even after a failure of its own.
Outcome Train(const TrainConfig& config, const TrainingTokenizer& tokenizer, const Topology& topology,
              Transport& transport, std::chrono::steady_clock::time_point start) {
  const ParallelDims dims = MakeParallelDims(topology, transport);
  const std::unique_ptr<ControlPlane> plane = transport.NewControlPlane("errors");
  if (!config.kill_switch_path.empty()) {
    const Result<std::string> found = FromRoot(*plane, "kill switch", [&]() -> Result<std::string> {
      return std::string(FindKillSwitch(config.kill_switch_path) ? "found" : "");
    });
    if (!found.ok() || !found->empty()) return {found.status(), true};
  }
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Checkpointer> checkpointer;  // ends first: its threads read the trainer's memory
  Status status = Guard([&]() -> Status {
    if (!config.save.empty() || !config.load.empty()) {
      const int device = at::Device(transport.device()).index();
      CAIRN_ASSIGN_OR_RETURN(checkpointer,
                             Checkpointer::Create(CheckpointsOf(config, tokenizer, topology, device),
                                                  transport.NewControlPlane("checkpoints")));
    }
    CAIRN_ASSIGN_OR_RETURN(
        trainer, Trainer::Create(config, dims, at::Device(transport.device()), checkpointer.get(), start));
    return OkStatus();
  });
  if (status = AgreeOn(*plane, status, "opening data and checkpoints"); !status.ok()) return {status, true};
  status = Guard([&] { return trainer->Start(); });
  if (status = AgreeOn(*plane, status, "outcome of the start"); !status.ok()) return {status, true};
  const Result<TrainingEnd> end = trainer->Run();
  if (checkpointer)
    checkpointer->record().End(!end.ok() || *end == TrainingEnd::kUnread ? "failed"
                               : *end == TrainingEnd::kDiverged          ? "diverged"
                               : *end == TrainingEnd::kCopiesDiffer      ? "failed"
                               : *end == TrainingEnd::kGaveUpLocal       ? "failed"
                                                                         : "done",
                               std::string(end.status().message()));
  if (!end.ok()) return {end.status()};
  if (*end == TrainingEnd::kUnread)
    return {AgreeOn(*plane, trainer->DataStatus(), "outcome of reading"), true};
  return {OkStatus(), true, *end};
}

// The agreements are as in Train.
Outcome Evaluate(const TrainConfig& config, const Topology& topology, Transport& transport) {
  const ParallelDims dims = MakeParallelDims(topology, transport);
  const std::unique_ptr<ControlPlane> plane = transport.NewControlPlane("errors");
  std::unique_ptr<Evaluation> evaluation;
  Status status = Guard([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(evaluation, Evaluation::Create(config, dims, at::Device(transport.device())));
    return OkStatus();
  });
  if (status = AgreeOn(*plane, status, "opening data"); !status.ok()) return {status, true};
  const std::unique_ptr<ControlPlane> loads = transport.NewControlPlane("checkpoints");
  status = Guard([&] { return evaluation->Load(*loads); });
  if (status = AgreeOn(*plane, status, "outcome of the load"); !status.ok()) return {status, true};
  evaluation->Run();
  return {AgreeOn(*plane, evaluation->DataStatus(), "outcome of reading"), true};
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
  KeepFreedMemory();
  SetThreads(config.threads);
  if (config.device == "cuda") UseDeterministicKernels();
  std::unique_ptr<Transport> transport;
  const Status launched = Guard([&] {
    transport = Launch({.device = config.device, .timeout_seconds = config.distributed_timeout_seconds});
    return OkStatus();
  });
  if (!launched.ok()) {  // before there are ranks
    Say(launched.message());
    return ExitOf(launched);
  }
  TrainingTokenizer tokenizer;
  Topology topology;
  const std::unique_ptr<ControlPlane> plane = transport->NewControlPlane("configuration");
  const Status configured = Guard([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(TakeStartingModel(*parsed, *plane));
    CAIRN_ASSIGN_OR_RETURN(tokenizer, TakeTokenizer(config));
    CAIRN_ASSIGN_OR_RETURN(topology, Validate(config, transport->size()));
    return OkStatus();
  });
  if (const Status agreed = AgreeOn(*plane, configured, "configuration"); !agreed.ok()) {
    if (transport->rank() == 0) Complain(agreed);
    return kExitTrouble;
  }
  if (config.bf16 && config.device == "cpu" && !HasBf16Products())
    config.notes.push_back(
        "libtorch has no bf16 products for this CPU (it lacks AVX-512), so they are computed in fp32: --bf16 "
        "saves memory of activations, but no time");
  if (transport->rank() == 0)
    for (const std::string& note : config.notes) Print(fmt::format(" {}\n", note));
  Outcome outcome;
  const Status trained = Guard([&] {
    outcome = config.skip_train ? Evaluate(config, topology, *transport)
                                : Train(config, tokenizer, topology, *transport, start);
    return outcome.status;
  });
  if (trained.ok() && outcome.end == TrainingEnd::kGaveUpLocal) return kExitLostPeer;
  if (trained.ok()) return outcome.end == TrainingEnd::kDone ? 0 : kExitCheckFailed;
  if (outcome.together) {
    if (transport->rank() == 0) Complain(trained);
    return kExitTrouble;
  }
  Complain(trained.WithContext(Watchdog::Name(transport->rank())));
  Watchdog::StopAllRanks(ExitOf(trained));
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
