// kCounts lists the fields that are counts, with all their names: a new count, or a new name, is a change of
// one row. Derive completes each product that lacks one factor, and does so twice, because one product may
// supply what another one lacks.

#include "tools/report/run_config.h"

#include <algorithm>

#include "tools/report/numbers.h"

namespace cairn {
namespace {

constexpr ConfigCount kCounts[] = {
    {&RunConfig::gpus, "gpus", "world_size", "GPUs", "gpu ngpus"},
    {&RunConfig::nodes, "nodes", "nnodes", "nodes", "node nnodes n", "num_nodes"},
    {&RunConfig::gpus_per_node, "gpus_per_node", "nproc_per_node", "GPUs of a node", "", "num_gpus"},
    {&RunConfig::tp, "tp", "tensor_model_parallel_size", "tensor parallel size", "mp", "model_parallel_size"},
    {&RunConfig::pp, "pp", "pipeline_model_parallel_size", "pipeline parallel size"},
    {&RunConfig::dp, "dp", "data_parallel_size", "data parallel size"},
    {&RunConfig::cp, "cp", "context_parallel_size", "context parallel size"},
    {&RunConfig::virtual_layers, "virtual_layers", "num_layers_per_virtual_pipeline_stage",
     "layers of a virtual stage"},
    // The first Megatron's batch_size is that of a GPU.
    {&RunConfig::mbs, "mbs", "micro_batch_size", "samples of a micro-batch", "microbatch micbs",
     "train_micro_batch_size_per_gpu batch_size"},
    {&RunConfig::gbs, "gbs", "global_batch_size", "samples of an iteration", "globalbatch globbs",
     "train_batch_size"},
    {&RunConfig::gas, "gas", "gradient_accumulation_steps", "micro-batches of an iteration",
     "chunks ppchunks", "gradient_accumulation_step"},
    {&RunConfig::zero, "zero", "zero_stage", "ZeRO stage", "z", "zero_optimization_stage"},
    {&RunConfig::layers, "layers", "num_layers", "layers", "nlayers nl"},
    {&RunConfig::hidden, "hidden", "hidden_size", "hidden size", "nhidden hiddensize nhid nh hs"},
    {&RunConfig::heads, "heads", "num_attention_heads", "attention heads", "nheads"},
    // Microsoft's Megatron-DeepSpeed has num_key_value_heads.
    {&RunConfig::kv_heads, "kv_heads", "num_query_groups", "key and value heads", "", "num_key_value_heads"},
    {&RunConfig::head_dim, "head_dim", "kv_channels", "width of a head"},
    {&RunConfig::ffn, "ffn", "ffn_hidden_size", "hidden size of the MLP"},
    {&RunConfig::experts, "experts", "num_experts", "experts of a layer", "", "num_moe_experts"},
    {&RunConfig::experts_per_token, "topk", "moe_router_topk", "experts that a token visits"},
    {&RunConfig::expert_ffn, "expert_ffn", "moe_ffn_hidden_size", "hidden size of an expert"},
    {&RunConfig::shared_ffn, "shared_ffn", "moe_shared_expert_intermediate_size",
     "hidden size of the expert that every token visits"},
    {&RunConfig::ep, "ep", "expert_model_parallel_size", "expert parallel size"},
    {&RunConfig::etp, "etp", "expert_tensor_parallel_size", "tensor parallel size of experts"},
    {&RunConfig::query_rank, "q_lora_rank", "q_lora_rank", "latent size of queries"},
    {&RunConfig::key_value_rank, "kv_lora_rank", "kv_lora_rank", "latent size of keys and values"},
    {&RunConfig::unrotated_dim, "qk_head_dim", "qk_head_dim", "elements of a head that are not rotated"},
    {&RunConfig::rotated_dim, "qk_pos_emb_head_dim", "qk_pos_emb_head_dim",
     "elements of a head that are rotated"},
    {&RunConfig::value_dim, "v_head_dim", "v_head_dim", "width of a head's values"},
    {&RunConfig::seq, "seq", "seq_length", "tokens of a sample", "seqlen sl"},
    {&RunConfig::vocab, "vocab", "vocab_size", "vocabulary"},
    {&RunConfig::padded_vocab, "padded_vocab", "padded_vocab_size", "vocabulary as padded"},
    {&RunConfig::train_iters, "iters", "train_iters", "iterations of the training"},
    {&RunConfig::log_interval, "log_interval", "log_interval", "iterations of a log line", "",
     "steps_per_print"},
    {&RunConfig::save_interval, "save_interval", "save_interval", "iterations of a checkpoint"},
};

constexpr std::optional<bool> RunConfig::*kSwitches[] = {&RunConfig::recompute, &RunConfig::gated,
                                                         &RunConfig::grouped,   &RunConfig::untied,
                                                         &RunConfig::mixture,   &RunConfig::latent};

// True if `word` is one of `words`, which blanks separate.
bool IsAmong(std::string_view word, std::string_view words) {
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    if (SameWord(words.substr(begin, end - begin), word)) return true;
    begin = end + 1;
  }
  return false;
}

// Calls `use` with each field, and whether it is a fact of the run, not only of its log.
template <typename Use>
void ForEachField(const Use& use) {
  for (const ConfigCount& count : kCounts)
    use(count.field, count.field != &RunConfig::save_interval && count.field != &RunConfig::log_interval);
  for (const auto field : kSwitches) use(field, true);
  use(&RunConfig::size_b, true);
  use(&RunConfig::active_b, true);
  use(&RunConfig::mixture_layers, true);
  use(&RunConfig::precision, true);
}

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

const ConfigCount* CountOfWord(std::string_view word) {
  const auto found = std::ranges::find_if(kCounts, [word](const ConfigCount& count) {
    return SameWord(count.name, word) || IsAmong(word, count.words);
  });
  return found == std::end(kCounts) ? nullptr : found;
}

const ConfigCount* CountOfName(std::string_view name) {
  const auto found = std::ranges::find_if(kCounts, [name](const ConfigCount& count) {
    return name == count.long_name || name == count.name || IsAmong(name, count.other_names);
  });
  return found == std::end(kCounts) ? nullptr : found;
}

void FillFrom(const RunConfig& other, RunConfig& config) {
  ForEachField([&](auto field, bool) {
    if (!(config.*field)) config.*field = other.*field;
  });
}

void Derive(RunConfig& config) {
  std::optional<int64_t> cp = config.cp.value_or(1);
  for (int round = 0; round < 2; ++round) {
    Complete(config.gpus, {&config.nodes, &config.gpus_per_node});
    Complete(config.gpus, {&config.tp, &config.pp, &config.dp, &cp});
    Complete(config.gbs, {&config.mbs, &config.gas, &config.dp});
  }
}

std::optional<int> EqualFields(const RunConfig& a, const RunConfig& b) {
  int equal = 0;
  bool differ = false;
  ForEachField([&](auto field, bool of_the_run) {
    if (!(a.*field) || !(b.*field)) return;
    const bool same = *(a.*field) == *(b.*field);
    equal += same;
    differ |= of_the_run && !same;
  });
  return differ ? std::nullopt : std::optional(equal);
}

}  // namespace cairn
