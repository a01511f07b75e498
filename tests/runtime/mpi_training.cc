// Whole trainings of 20 steps against torch's own AdamW: warm-up and cosine decay with Megatron's timing,
// gradient clipping, matrices decayed and vectors not, a batch that ramps up, the loss scale of fp16 with
// steps that overflow; in three types, over meshes of up to 4 ranks. The reference model is libtorch's
// operators and autograd on one rank (reference_gpt.h). Losses, gradient norms, learning rates and the last
// weights are compared; skipped steps are taken from our log.
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>

#include "ckpt/base/flat_range.h"
#include "ckpt/model/canonical_modules.h"
#include "runtime/config/model_spec.h"
#include "runtime/data/hash.h"
#include "runtime/model/parameters/initialize.h"
#include "runtime/train/mock_data.h"
#include "runtime/train/trainer.h"
#include "tests/support/mpi_main.h"
#include "tests/support/reference_gpt.h"
#include "tests/support/separated_sides.h"

namespace cairn {
namespace {

using at::Tensor;
using Rows = std::vector<nlohmann::json>;  // of --log-json

constexpr int kSteps = 20;

struct Precision {
  const char* name;
  double loss, norm, weights;  // tolerances, relative
};
constexpr Precision kPrecisions[] = {
    {"fp32", 1e-6, 1e-5, 1e-4}, {"bf16", 3e-3, 0.1, 0.3}, {"fp16", 1e-3, 0.03, 0.1}};
// A mesh, and its training's options other than the defaults.
struct Case {
  Topology mesh = {};
  void (*change)(TrainConfig&) = nullptr;
  bool always = false;  // in all three precisions; otherwise only in fp32
  bool apart = false;  // host and device memory are separate, and access from the wrong side ends the program
};
void NothingStays(TrainConfig& c) {
  c.stage3_param_persistence_threshold = c.stage3_prefetch_bucket_size = c.stage3_max_reuse_distance = 0;
  c.reduce_bucket_size = 1000;
  c.micro_batch_size = 1;
}
void OffloadOptimizer(TrainConfig& c) { c.offload_optimizer = true; }
void OffloadAll(TrainConfig& c) {
  c.offload_optimizer = c.offload_param = true;
  c.stage3_param_persistence_threshold = 100;  // norms and biases stay
  c.stage3_prefetch_bucket_size = 5000;        // a layer is 12,000
  c.stage3_max_reuse_distance = 0;
}
void Interleaved(TrainConfig& c) {
  c.num_layers = 2 * c.pipeline_model_parallel_size;
  c.num_layers_per_virtual_pipeline_stage = 1;
  c.micro_batch_size = 1;
}
void RecomputeFromParts(TrainConfig& c) {
  c.checkpoint_activations = c.partition_activations = c.checkpoint_in_cpu = c.scattered_embeddings = true;
}
void RecomputePairs(TrainConfig& c) {
  c.checkpoint_activations = c.partition_activations = true;
  c.recompute_num_layers = 2;
}
void CutRows(TrainConfig& c) {
  c.sequence_parallel = true;
  c.recompute_granularity = "selective";
}
void Tiled(TrainConfig& c) {
  NothingStays(c);
  c.memory_centric_tiled_linear = true;
  c.tile_factor = 3;  // which divides no matrix
}
void TiledAhead(TrainConfig& c) {  // with prefetched and recomputed layers, from the host's memory
  OffloadAll(c);
  c.memory_centric_tiled_linear = true;
  c.tile_factor = 4;
  c.micro_batch_size = 1;
  c.checkpoint_activations = true;
}
void TiledOnCutRows(TrainConfig& c) {
  CutRows(c);
  Tiled(c);
}
// About two of 16 tokens end a document.
void ResetByDocument(TrainConfig& c) {
  c.eod = 3;
  c.reset_position_ids = c.reset_attention_mask = true;
}
void ResetOnCutRows(TrainConfig& c) {
  CutRows(c);
  ResetByDocument(c);
}
void ResetInterleaved(TrainConfig& c) {
  Interleaved(c);
  ResetByDocument(c);
}
const Case kCases[] = {{.always = true},
                       {{.tp = 2}},
                       {{.pp = 2}},
                       {{.dp = 2, .zero = 1}},
                       {{.tp = 2, .dp = 2}, nullptr, true},
                       {{.pp = 2, .dp = 2, .zero = 1}, nullptr, true},
                       {{.tp = 2, .pp = 2}},
                       {{.pp = 2, .dp = 2, .zero = 1, .virtual_stages = 2}, Interleaved},
                       {{.pp = 4, .virtual_stages = 2}, Interleaved},
                       {{.dp = 2, .zero = 2}},
                       {{.dp = 4, .zero = 3}, NothingStays, true},
                       {{.tp = 2, .dp = 2, .zero = 3}},
                       {{.tp = 2, .pp = 2}, CutRows},
                       {{.tp = 2, .dp = 2, .zero = 3}, CutRows},
                       {{.tp = 2}, RecomputePairs},
                       {{.tp = 2, .dp = 2, .zero = 3}, RecomputeFromParts},
                       {{}, OffloadOptimizer, false, true},
                       {{.dp = 2, .zero = 2}, OffloadOptimizer, false, true},
                       {{.dp = 2, .zero = 3}, OffloadAll, true, true},
                       {{.dp = 4, .zero = 2}, Tiled},
                       {{.dp = 4, .zero = 3}, Tiled, true},
                       {{.dp = 4, .zero = 3}, TiledAhead, false, true},
                       {{.tp = 2, .dp = 2, .zero = 3}, TiledOnCutRows},
                       {{.tp = 2, .pp = 2}, ResetOnCutRows},
                       {{.pp = 4, .virtual_stages = 2}, ResetInterleaved},
                       {{.dp = 2, .zero = 3}, ResetByDocument, true}};

// Other models, in fp32.
void LlamaLike(TrainConfig& c) {
  c.sequence_parallel = true;
  c.normalization = "RMSNorm";
  c.position_embedding_type = "rope";
  c.swiglu = c.disable_bias_linear = c.qk_layernorm = c.untie_embeddings_and_output_weights = true;
  c.group_query_attention = true;
  c.num_query_groups = 2;
  c.kv_channels = 12;
}
void LlamaLikeInParts(TrainConfig& c) {
  LlamaLike(c);
  c.sequence_parallel = false;
  NothingStays(c);
}
void LlamaLikeInTiles(TrainConfig& c) {
  LlamaLikeInParts(c);
  Tiled(c);
}
void BloomLike(TrainConfig& c) {
  c.sequence_parallel = true;
  c.position_embedding_type = "alibi";
  c.embed_layernorm = true;
  c.num_layers = 3;
  c.layers_per_stage = {1, 2};
}
void ResetLlamaLike(TrainConfig& c) {
  LlamaLike(c);
  ResetByDocument(c);
}
void ResetBloomLike(TrainConfig& c) {
  BloomLike(c);
  ResetByDocument(c);
}
const Case kOtherFamilies[] = {{{.tp = 2, .pp = 2}, LlamaLike},
                               {{.tp = 2, .dp = 2, .zero = 3}, LlamaLikeInParts},
                               {{.tp = 2, .dp = 2, .zero = 3}, LlamaLikeInTiles},
                               {{.tp = 2, .pp = 2, .layers_per_stage = {1, 2}}, BloomLike},
                               {{.tp = 2, .pp = 2}, ResetLlamaLike},
                               {{.tp = 2, .pp = 2, .layers_per_stage = {1, 2}}, ResetBloomLike}};

TrainConfig Config(const Precision& precision, const Case& with) {
  TrainConfig c;
  const Topology& mesh = with.mesh;
  c.num_layers = 2;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.vocab_size = 101;
  c.seq_length = 16;
  c.hidden_dropout = c.attention_dropout = 0;
  c.init_method_std = 0.1;
  c.bf16 = precision.name == std::string_view("bf16");
  c.fp16 = precision.name == std::string_view("fp16");
  c.initial_loss_scale = 1 << 26;
  c.hysteresis = 1;
  c.loss_scale_window = 6;
  c.mock_data = true;
  c.micro_batch_size = 2;
  c.global_batch_size = 12;
  c.rampup_batch_size = {4, 4, 24};
  c.train_iters = kSteps;
  c.lr = 3e-3;
  c.min_lr = 3e-4;
  c.lr_decay_style = "cosine";
  c.lr_warmup_samples = 30;
  c.lr_decay_samples = 150;
  c.weight_decay = 0.1;
  c.adam_beta2 = 0.95;
  c.clip_grad = 0.5;
  c.tensor_model_parallel_size = mesh.tp;
  c.pipeline_model_parallel_size = mesh.pp;
  c.zero_stage = mesh.zero;
  if (with.change != nullptr) with.change(c);
  return c;
}

// Megatron's OptimizerParamScheduler.
double Rate(const TrainConfig& c, double samples) {
  const double warmup = static_cast<double>(c.lr_warmup_samples);
  const double decay = static_cast<double>(c.lr_decay_samples);
  if (samples <= warmup) return c.lr * samples / warmup;
  if (samples > decay) return c.min_lr;
  const double part = (samples - warmup) / (decay - warmup);
  return c.min_lr + 0.5 * (std::cos(std::numbers::pi * part) + 1) * (c.lr - c.min_lr);
}

Leaves InitialMasters(const TrainConfig& config) {
  const std::vector<ParameterSpec> specs = GptSpecs(config);
  FlatParameters whole(specs, *LayoutOf(specs, {}, 0), 1, Dtype::kF32, at::kCPU);
  InitialValues(config, whole, [&](const LocalParameter& local, const Tensor& values) {
    whole.weights().narrow(0, static_cast<int64_t>(local.flat_begin), values.numel()).copy_(values);
  });
  Leaves masters;
  for (const ParameterSpec& spec : specs)
    masters[spec.name] = whole.View(spec.name).value().detach().clone().requires_grad_();
  return masters;
}

class Reference {
 public:
  explicit Reference(const TrainConfig& config) : config_(config), masters_(InitialMasters(config)) {
    for (const bool matrices : {true, false}) {
      std::vector<Tensor> group;
      for (const auto& [name, master] : masters_)
        if ((master.dim() >= 2) == matrices) group.push_back(master);
      auto options = std::make_unique<torch::optim::AdamWOptions>(config.lr);
      options->betas({config.adam_beta1, config.adam_beta2});
      options->eps(config.adam_eps);
      options->weight_decay(matrices ? config.weight_decay : 0);
      groups_.emplace_back(std::move(group), std::move(options));
    }
    adam_ = std::make_unique<torch::optim::AdamW>(groups_);
  }

  struct Step {
    double loss = 0, norm = 0, rate = 0;
  };
  // The step that `row` is about, whose batch begins at `consumed`.
  Step Take(const nlohmann::json& row, int64_t consumed) {
    const int64_t batch = row["consumed_samples"].get<int64_t>() - consumed;
    const int64_t count = batch / config_.micro_batch_size;
    const double scale = config_.fp16 ? 1024 : 1;  // its fp16 gradients overflow before ours, which are fp32
    Step step;
    adam_->zero_grad();
    for (int64_t i = 0; i < count; ++i)
      step.loss += Backward(consumed + i * config_.micro_batch_size, scale) / static_cast<double>(count);
    std::vector<Tensor> all;
    for (auto& [name, master] : masters_) {
      master.mutable_grad().div_(scale * static_cast<double>(count));
      all.push_back(master);
    }
    if (!row["skipped"].get<bool>()) {
      step.norm = torch::nn::utils::clip_grad_norm_(all, config_.clip_grad);
      for (auto& group : adam_->param_groups()) group.options().set_lr(Rate(config_, updated_samples_));
      adam_->step();
      updated_samples_ += static_cast<double>(batch);
    }
    step.rate = Rate(config_, updated_samples_);
    return step;
  }
  const Leaves& masters() const { return masters_; }

 private:
  double Backward(int64_t first, double scale) {
    Leaves weights;
    for (const auto& [name, master] : masters_) weights[name] = master.to(ToScalarType(config_.dtype()));
    const Tensor samples = at::empty({config_.micro_batch_size, config_.seq_length + 1}, at::kLong);
    const uint64_t seed = HashNumbers({static_cast<uint64_t>(config_.seed), HashName("train")});
    for (int k = 0; k < config_.micro_batch_size; ++k)
      MockSample(seed, first + k, config_.vocab_size,
                 {samples[k].mutable_data_ptr<int64_t>(), static_cast<size_t>(config_.seq_length + 1)});
    const Tensor loss = ReferenceLoss(config_, weights, samples.narrow(1, 0, config_.seq_length),
                                      samples.narrow(1, 1, config_.seq_length).contiguous());
    (loss * scale).backward();
    return loss.item<double>();
  }

  const TrainConfig config_;
  Leaves masters_;
  std::vector<torch::optim::OptimizerParamGroup> groups_;
  std::unique_ptr<torch::optim::AdamW> adam_;
  double updated_samples_ = 0;
};

// Keeps this rank's weights after the last step.
class LastWeights : public CheckpointHooks {
 public:
  Result<std::optional<TrainState>> Resume(StateBuffers&) override { return std::optional<TrainState>(); }
  Status Prepare(const StateBuffers&) override { return OkStatus(); }
  bool Busy() const override { return false; }
  Status BeforeOptimizerStep() override { return OkStatus(); }
  Status AfterStep(const TrainState&, StateBuffers& buffers, bool force, bool) override {
    if (!force) return OkStatus();
    const Touches both = Touches::Both();
    const StateBuffers::Part& part = buffers.parts.at(0);
    const Tensor all =
        at::from_blob(part.data, {static_cast<int64_t>(part.covers.size())}, ToScalarType(part.dtype));
    for (const LocalParameter& local : buffers.layout.parameters) {
      const FlatRange here = Overlap({local.flat_begin, local.flat_begin + local.box.Volume()}, part.covers);
      if (here.size() > 0)
        kept_.push_back({buffers.specs[local.index].name,
                         local.box,
                         {here.begin - local.flat_begin, here.end - local.flat_begin},
                         SliceOf(all, here, part.covers.begin).to(at::kFloat, false, true)});
    }
    return OkStatus();
  }
  Result<std::string> GiveUp(const TrainState&) override { return std::string(); }
  Status Finish() override { return OkStatus(); }

  // Returns the largest distance to `masters` of a parameter, as a share of how far it has moved.
  double Check(const Leaves& masters, const Leaves& initial, double tolerance) const {
    double worst = 0;
    TORCH_CHECK(!kept_.empty(), "nothing was kept");
    for (const Kept& kept : kept_) {
      if (kept.name.ends_with("attention.key.bias")) continue;  // its gradient is noise about zero
      const auto part = [&](const Leaves& leaves) {
        Tensor t = leaves.at(kept.name).detach();
        for (int d = 0; d < kept.box.rank(); ++d)
          t = t.narrow(d, static_cast<int64_t>(kept.box.offset[d]), static_cast<int64_t>(kept.box.extent[d]));
        return SliceOf(t.reshape({-1}), kept.range, 0);
      };
      const Tensor wanted = part(masters);
      const double moved = (wanted - part(initial)).norm().item<double>();
      const double off = (kept.values - wanted).norm().item<double>();
      TORCH_CHECK(off <= tolerance * moved, kept.name, " is ", off, " off after it moved ", moved);
      worst = std::max(worst, off / moved);
    }
    return worst;
  }

 private:
  struct Kept {
    std::string name;
    Box box;
    FlatRange range;  // of the box, that this rank keeps
    Tensor values;
  };
  std::vector<Kept> kept_;
};

// Returns the relative difference.
double CheckNear(double mine, double wanted, double tolerance, const char* what, int64_t step) {
  TORCH_CHECK(std::abs(mine - wanted) <= tolerance * std::abs(wanted), what, " of step ", step, " is ", mine,
              ", not ", wanted);
  return std::abs(mine / wanted - 1);
}

// The reference's training with the batches of `rows`: loss, norm and rate of each step.
struct Trajectory {
  Tensor steps;
  Leaves initial, last;
};
// One rank computes it, and the others sleep.
Trajectory ReferenceTraining(const TrainConfig& config, const Rows& rows, const ProcessGroup& world) {
  Trajectory made{at::zeros({kSteps, 3}, at::kDouble), InitialMasters(config), {}};
  Reference reference(config);
  int64_t consumed = 0;
  for (int64_t i = 0; world.rank() == 0 && i < kSteps; ++i) {
    const Reference::Step step = reference.Take(rows[i], consumed);
    made.steps[i] = at::tensor({step.loss, step.norm, step.rate}, at::kDouble);
    consumed = rows[i]["consumed_samples"];
  }
  world.Broadcast(made.steps, 0, "reference");
  for (const auto& [name, master] : reference.masters()) {
    Tensor last = master.detach().clone();
    world.Broadcast(last, 0, name);
    made.last[name] = last;
  }
  return made;
}
// Most of these trainings differ only in mesh and memory, which the reference does not know. The ranks of a
// world of one size are always the same, so they know the same.
const Trajectory& TrajectoryOf(const TrainConfig& c, const Precision& precision, const Rows& rows,
                               const ProcessGroup& world) {
  static std::map<std::string, Trajectory> known;
  std::string key =
      fmt::format("{} {} {} {} {} {} {}", world.size(), precision.name, c.micro_batch_size, c.eod,
                  c.reset_position_ids, c.reset_attention_mask, nlohmann::json(ModelFacts(c)).dump());
  for (const nlohmann::json& row : rows)
    key += fmt::format(" {} {}", row["consumed_samples"].get<int64_t>(), row["skipped"].get<bool>());
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(std::move(key), ReferenceTraining(c, rows, world)).first;
  return found->second;
}

void Check(const TrainConfig& config, const Precision& precision, const Rows& rows, const LastWeights& last,
           const ProcessGroup& world) {
  TORCH_CHECK(rows.size() == kSteps, rows.size(), " rows");
  const Trajectory& reference = TrajectoryOf(config, precision, rows, world);
  int64_t consumed = 0, skipped = 0;
  double loss = 0, norm = 0, weights = 0;  // largest differences
  for (size_t i = 0; i < rows.size(); ++i) {
    const nlohmann::json& row = rows[i];
    const int64_t iteration = row["iteration"];
    const auto wanted = [&](int column) {
      return reference.steps[static_cast<int64_t>(i)][column].item<double>();
    };
    consumed = row["consumed_samples"];
    CheckNear(row["lr"], wanted(2), 1e-8, "learning rate", iteration);
    loss = std::max(loss, CheckNear(row["loss"], wanted(0), precision.loss, "loss", iteration));
    skipped += row["skipped"].get<bool>();
    if (!row["skipped"].get<bool>())
      norm =
          std::max(norm, CheckNear(row["grad_norm"], wanted(1), precision.norm, "gradient norm", iteration));
  }
  TORCH_CHECK(consumed == 3 * 4 + 2 * 8 + 15 * 12, "the batch did not ramp up: ", consumed);
  TORCH_CHECK(config.fp16 ? skipped >= 2 && skipped <= 10 : skipped == 0, skipped, " steps were skipped");
  weights = last.Check(reference.last, reference.initial, precision.weights);
  fmt::print(" {}: losses within {:.1e}, norms {:.1e}, weights {:.1e}; {} steps skipped\n", precision.name,
             loss, norm, weights, skipped);
}

void Train(const ParallelDims& dims, const Precision& precision, const Case& with, const std::string& log) {
  PutSidesApart(with.apart);
  TrainConfig config = Config(precision, with);
  config.log_json = log;
  const auto valid = Validate(config, dims.topology.world());
  TORCH_CHECK(valid.ok(), valid.status().message());
  LastWeights last;
  {
    auto trainer = Trainer::Create(config, dims, at::kCPU, &last, std::chrono::steady_clock::now());
    TORCH_CHECK(trainer.ok(), trainer.status().message());
    TORCH_CHECK((*trainer)->Start().ok());
    const auto end = (*trainer)->Run();
    TORCH_CHECK(end.ok(), end.status().message());
  }
  Meet(dims.world, "log");
  Rows rows;
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  Check(config, precision, rows, last, dims.world);
  Meet(dims.world, "check");
}

void Run(Transport& transport) {
  at::set_num_threads(1);
  // mpirun's number is the same for all ranks
  const std::filesystem::path log =
      std::filesystem::temp_directory_path() / fmt::format("cairn-mpi-training-{}", getppid());
  const auto run = [&](const Precision& precision, const Case& with) {
    const Topology& mesh = with.mesh;
    const bool idle = transport.rank() >= mesh.world();
    std::vector<int> ranks{transport.rank()};
    if (!idle) {
      ranks.resize(mesh.world());
      std::iota(ranks.begin(), ranks.end(), 0);
    }
    const ParallelDims dims = MakeParallelDims(idle ? Topology{} : mesh, ranks, transport);
    if (idle) return;
    try {
      Train(dims, precision, with, log);
    } catch (const std::exception& error) {
      TORCH_CHECK(false, precision.name, ", ", ToString(mesh), ": ", ErrorText(error));
    }
    if (transport.rank() == 0) std::filesystem::remove(log);
  };
  for (const Precision& precision : kPrecisions)
    for (const Case& with : kCases)
      if (with.always || &precision == &kPrecisions[0]) run(precision, with);
  for (const Case& with : kOtherFamilies) run(kPrecisions[0], with);
}

}  // namespace
}  // namespace cairn

int main() {
  return cairn::MpiMain({.timeout_seconds = 60}, [](cairn::Transport& transport) { cairn::Run(transport); });
}
