// The bubble of each schedule, measured: `mpi_run P pipeline_bubble` trains a model whose layers sleep, on P
// stages, and prints each stage's idle time as a share of its busy time, next to the
// formula. Sleeping ranks need no cores, so any machine will do. Run by hand; docs/performance.md.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "ckpt/model/canonical_modules.h"
#include "runtime/config/model_spec.h"
#include "runtime/train/pipeline.h"
#include "tests/support/mpi_main.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// The seconds of a layer; the embedding and the output take no additional time.
class SleepingLayers : public UnitHooks {
 public:
  void BeforeForward(int unit) override { Sleep(unit, forward); }
  void AfterForward(int) override {}
  void BeforeBackward(int unit) override { Sleep(unit, 2 * forward); }
  void AfterBackward(int) override {}

  Seconds forward{0};
  Seconds busy{0};

 private:
  void Sleep(int unit, Seconds seconds) {
    if (unit == kBeforeLayers || unit == kAfterLayers) return;
    const auto start = Clock::now();
    std::this_thread::sleep_for(seconds);
    busy += Clock::now() - start;
  }
};

struct Case {
  const char* name;
  int chunks;
  int64_t micro_batches;
};

TrainConfig Config(const Case& c, int stages, int layers) {
  TrainConfig config;
  config.num_layers = layers * stages;
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  config.vocab_size = 61;
  config.seq_length = 8;
  config.hidden_dropout = config.attention_dropout = 0;
  config.mock_data = true;
  config.train_iters = 1;
  config.global_batch_size = c.micro_batches;
  config.pipeline_model_parallel_size = stages;
  config.num_layers_per_virtual_pipeline_stage = c.chunks > 1 ? layers / c.chunks : 0;
  config.pipeline_schedule = c.name == std::string_view("gpipe") ? "gpipe" : "1f1b";
  return config;
}

// This stage's idle time as a share of its busy time.
double Measure(TrainConfig config, Transport& transport) {
  const Topology topology = *Validate(config, transport.size());
  const ParallelDims dims = MakeParallelDims(topology, transport);
  const std::vector<ParameterSpec> specs = GptSpecs(config);
  FlatParameters parameters(specs, *LayoutOf(specs, topology, dims.world_rank), 1, Dtype::kF32, at::kCPU);
  RandomStreams streams(at::kCPU, config.seed, topology, dims.world_rank);
  SleepingLayers sleeping;
  const std::vector<GptStage> chunks = MakeChunks(config, dims, parameters, streams, &sleeping);
  Pipeline pipeline(config, dims, chunks, at::kCPU);
  const at::Tensor tokens = at::zeros({1, config.seq_length}, at::kLong);
  const auto batches = [&](int64_t) { return MicroBatch{tokens, tokens}; };
  pipeline.Train(batches, config.global_batch_size, 1);  // allocations, thread pools
  sleeping = {};
  sleeping.forward = Seconds(0.05);
  Meet(dims.world, "start");
  const auto start = Clock::now();
  pipeline.Train(batches, config.global_batch_size, 1);
  Meet(dims.world, "end");
  return Seconds(Clock::now() - start) / sleeping.busy - 1;
}

void Run(Transport& transport) {
  at::set_num_threads(1);
  const int p = transport.size();
  for (const Case& c :
       {Case{"gpipe", 1, 2 * p}, Case{"1f1b", 1, 2 * p}, Case{"interleaved", 2, 2 * p},
        Case{"interleaved", 4, 2 * p}, Case{"1f1b", 1, 4 * p}, Case{"interleaved", 4, 4 * p}}) {
    at::Tensor idle = at::zeros({p}, at::kDouble);
    idle[transport.rank()] = Measure(Config(c, p, /*layers=*/4), transport);
    transport
        .Split("all",
               [&] {
                 std::vector<int> all(p);
                 for (int rank = 0; rank < p; ++rank) all[rank] = rank;
                 return all;
               }())
        .AllReduceSum(idle, "idle shares");
    if (transport.rank() != 0) continue;
    const double formula = (p - 1.0) / static_cast<double>(c.micro_batches * c.chunks);
    fmt::print(
        "{:<12} {} stages, {} chunks, {:>2} micro-batches: idle {:.3f} (stages {:.3f} to {:.3f}), formula "
        "{:.3f}\n",
        c.name, p, c.chunks, c.micro_batches, idle.mean().item<double>(), idle.min().item<double>(),
        idle.max().item<double>(), formula);
  }
}

}  // namespace
}  // namespace cairn

int main() {
  return cairn::MpiMain({.timeout_seconds = 60}, [](cairn::Transport& transport) { cairn::Run(transport); });
}
