// kCounts lists the fields that are counts, with their names; filling in and comparing use it, and a new
// count is one row. Derive completes each product that lacks one factor, and does so twice, because one
// product may supply what another one lacks.

#include "tools/report/run_config.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr ConfigCount kCounts[] = {
    {&RunConfig::gpus, "gpus", "world_size", "GPUs"},
    {&RunConfig::nodes, "nodes", "nnodes", "nodes"},
    {&RunConfig::gpus_per_node, "gpus_per_node", "nproc_per_node", "GPUs of a node"},
    {&RunConfig::tp, "tp", "tensor_model_parallel_size", "tensor parallel size"},
    {&RunConfig::pp, "pp", "pipeline_model_parallel_size", "pipeline parallel size"},
    {&RunConfig::dp, "dp", "data_parallel_size", "data parallel size"},
    {&RunConfig::cp, "cp", "context_parallel_size", "context parallel size"},
    {&RunConfig::virtual_layers, "virtual_layers", "num_layers_per_virtual_pipeline_stage",
     "layers of a virtual stage"},
    {&RunConfig::mbs, "mbs", "micro_batch_size", "samples of a micro-batch"},
    {&RunConfig::gbs, "gbs", "global_batch_size", "samples of an iteration"},
    {&RunConfig::gas, "gas", "gradient_accumulation_steps", "micro-batches of an iteration"},
    {&RunConfig::zero, "zero", "zero_stage", "ZeRO stage"},
    {&RunConfig::layers, "layers", "num_layers", "layers"},
    {&RunConfig::hidden, "hidden", "hidden_size", "hidden size"},
    {&RunConfig::heads, "heads", "num_attention_heads", "attention heads"},
    {&RunConfig::kv_heads, "kv_heads", "num_query_groups", "key and value heads"},
    {&RunConfig::head_dim, "head_dim", "kv_channels", "width of a head"},
    {&RunConfig::ffn, "ffn", "ffn_hidden_size", "hidden size of the MLP"},
    {&RunConfig::seq, "seq", "seq_length", "tokens of a sample"},
    {&RunConfig::vocab, "vocab", "vocab_size", "vocabulary"},
    {&RunConfig::padded_vocab, "padded_vocab", "padded_vocab_size", "vocabulary as padded"},
    {&RunConfig::train_iters, "iters", "train_iters", "iterations of the training"},
    {&RunConfig::log_interval, "log_interval", "log_interval", "iterations of a log line"},
    {&RunConfig::save_interval, "save_interval", "save_interval", "iterations of a checkpoint"},
};

constexpr std::optional<bool> RunConfig::*kSwitches[] = {&RunConfig::recompute, &RunConfig::gated,
                                                         &RunConfig::grouped, &RunConfig::untied};

constexpr int64_t kLargestSide = 1'000'000'000;  // of a model

// a = b·c·d, if only one is missing and the division has no remainder.
void Complete(std::optional<int64_t>& a, std::initializer_list<std::optional<int64_t>*> factors) {
  int64_t product = 1;
  std::optional<int64_t>* missing = nullptr;
  for (std::optional<int64_t>* factor : factors) {
    if (!factor->has_value()) {
      if (missing) return;
      missing = factor;
    } else if (__builtin_mul_overflow(product, **factor, &product) || product <= 0) {
      return;
    }
  }
  if (!missing && !a) {
    a = product;
  } else if (missing && a && *a > 0 && *a % product == 0) {
    *missing = *a / product;
  }
}

}  // namespace

std::span<const ConfigCount> ConfigCounts() { return kCounts; }

void FillFrom(const RunConfig& other, RunConfig& config) {
  for (const ConfigCount& count : kCounts)
    if (!(config.*count.field)) config.*count.field = other.*count.field;
  if (!config.size_b) config.size_b = other.size_b;
  for (const auto field : kSwitches)
    if (!(config.*field)) config.*field = other.*field;
  if (!config.precision) config.precision = other.precision;
}

void Derive(RunConfig& config) {
  std::optional<int64_t> cp = config.cp.value_or(1);
  for (int round = 0; round < 2; ++round) {
    Complete(config.gpus, {&config.nodes, &config.gpus_per_node});
    Complete(config.gpus, {&config.tp, &config.pp, &config.dp, &cp});
    Complete(config.gbs, {&config.mbs, &config.gas, &config.dp});
  }
}

bool Agree(const RunConfig& a, const RunConfig& b) {
  for (const ConfigCount& count : kCounts) {
    const bool of_the_run =
        count.field != &RunConfig::save_interval && count.field != &RunConfig::log_interval;
    const auto &left = a.*count.field, &right = b.*count.field;
    if (of_the_run && left && right && *left != *right) return false;
  }
  for (const auto field : kSwitches)
    if (a.*field && b.*field && *(a.*field) != *(b.*field)) return false;
  return !(a.precision && b.precision && *a.precision != *b.precision);
}

std::optional<ModelShape> ShapeOf(const RunConfig& config) {
  const auto vocab = config.padded_vocab ? config.padded_vocab : config.vocab;
  const auto possible = [](const std::optional<int64_t>& side) {
    return side && *side > 0 && *side <= kLargestSide;
  };
  if (!possible(config.layers) || !possible(config.hidden) || !possible(config.seq) || !possible(vocab))
    return std::nullopt;
  ModelShape shape{.layers = *config.layers,
                   .hidden = *config.hidden,
                   .heads = 1,
                   .seq = *config.seq,
                   .vocab = *vocab,
                   .vocab_multiple = 1,
                   .tied = !config.untied.value_or(false),
                   .has = {.gate = config.gated.value_or(false)}};
  if (possible(config.heads) && (possible(config.head_dim) || shape.hidden % *config.heads == 0)) {
    shape.heads = *config.heads;
    shape.head_dim = possible(config.head_dim) ? *config.head_dim : 0;
    if (possible(config.kv_heads) && config.grouped.value_or(true)) shape.kv_heads = *config.kv_heads;
  }
  if (possible(config.ffn))
    shape.ffn = *config.ffn;
  else if (shape.has.gate)  // Megatron-LM's default
    shape.ffn = std::max<int64_t>(64, shape.hidden * 8 / 3 / 64 * 64);
  return shape;
}

std::optional<double> Parameters(const RunConfig& config) {
  if (const auto shape = ShapeOf(config)) return shape->TotalParams();
  if (config.size_b) return *config.size_b * 1e9;
  return std::nullopt;
}

}  // namespace cairn
