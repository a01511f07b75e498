// The purpose of --memory-centric-tiled-linear: the peak of a rank's tensors in a training whose layer is
// mostly two wide matrices. Under ZeRO 3 neither their weights nor their gradients are ever whole in memory;
// under ZeRO 2 the gradients are not. Losses stay what they are without (more of them: mpi_training.cc).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/train/trainer.h"
#include "tests/support/live_bytes.h"
#include "tests/support/mpi_main.h"

namespace cairn {
namespace {

constexpr int64_t kHidden = 64, kWide = 4096, kTiles = 4;
constexpr int64_t kMatrix = kHidden * kWide * int64_t{sizeof(float)};  // bytes of one, and of its gradient

TrainConfig Config(int zero_stage, bool tiled) {
  TrainConfig c;
  c.num_layers = 2;
  c.hidden_size = kHidden;
  c.ffn_hidden_size = kWide;
  c.num_attention_heads = 4;
  c.vocab_size = 101;
  c.seq_length = 8;
  c.hidden_dropout = c.attention_dropout = 0;
  c.init_method_std = 0.1;
  c.mock_data = true;
  c.micro_batch_size = 1;
  c.global_batch_size = 4;
  c.train_iters = 3;
  c.lr = 1e-3;
  c.zero_stage = zero_stage;
  // Parts that are not needed now are not allocated, so that the peak counts only the needed ones.
  c.stage3_param_persistence_threshold = c.stage3_prefetch_bucket_size = c.stage3_max_reuse_distance = 0;
  c.reduce_bucket_size = 1;
  c.memory_centric_tiled_linear = tiled;
  c.tile_factor = kTiles;
  return c;
}

struct Training {
  std::vector<double> losses;
  int64_t peak = 0;
};

Training Train(const ParallelDims& dims, TrainConfig config, const std::string& log) {
  config.log_json = log;
  const auto valid = Validate(config, dims.topology.world());
  TORCH_CHECK(valid.ok(), valid.status().message());
  Training training;
  {
    const LiveBytes live;
    {
      auto trainer = Trainer::Create(config, dims, at::kCPU, nullptr, std::chrono::steady_clock::now());
      TORCH_CHECK(trainer.ok(), trainer.status().message());
      TORCH_CHECK((*trainer)->Start().ok() && (*trainer)->Run().ok());
    }
    training.peak = live.peak();
    TORCH_CHECK(live.now() == 0, live.now(), " bytes were freed elsewhere: the peak is not counted right");
  }
  Meet(dims.world, "log");
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);)
    training.losses.push_back(nlohmann::json::parse(line)["loss"]);
  Meet(dims.world, "read");
  if (dims.world_rank == 0) std::filesystem::remove(log);
  return training;
}

// `saved`: bytes of the layer that are no longer in memory together.
void Check(const ParallelDims& dims, int zero_stage, int64_t saved, const std::string& log) {
  const Training whole = Train(dims, Config(zero_stage, false), log);
  const Training tiled = Train(dims, Config(zero_stage, true), log);
  if (dims.world_rank == 0)
    fmt::print("ZeRO {}: at most {} KiB of tensors whole, {} in tiles\n", zero_stage, whole.peak >> 10,
               tiled.peak >> 10);
  const int64_t less = whole.peak - tiled.peak;
  TORCH_CHECK(std::abs(less - saved) <= saved / 10, less, " bytes are saved, not ", saved);
  TORCH_CHECK(whole.losses.size() == 3 && tiled.losses.size() == 3, "steps are missing in the log");
  for (size_t i = 0; i < 3; ++i)
    TORCH_CHECK(std::abs(tiled.losses[i] / whole.losses[i] - 1) < 1e-6, tiled.losses[i], " in tiles, ",
                whole.losses[i], " whole");
}

void Run(Transport& transport) {
  at::set_num_threads(1);
  std::vector<int> ranks(transport.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  // mpirun's number is the same for all ranks
  const std::filesystem::path log =
      std::filesystem::temp_directory_path() / fmt::format("cairn-mpi-tiled-linear-{}", getppid());
  const auto check = [&](int zero_stage, int64_t saved) {
    const Topology mesh{.dp = transport.size(), .zero = zero_stage};
    Check(MakeParallelDims(mesh, ranks, transport), zero_stage, saved, log);
  };
  // Two matrices and two gradients, of which a tile's gradient is left.
  check(3, 4 * kMatrix - kMatrix / kTiles);
  check(2, 2 * kMatrix - kMatrix / kTiles);
}

}  // namespace
}  // namespace cairn

int main() {
  return cairn::MpiMain({.timeout_seconds = 60}, [](cairn::Transport& transport) { cairn::Run(transport); });
}
