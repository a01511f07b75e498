// The configuration of a run as far as it is known: the model's shape, the topology, the batch. From the log,
// else the file's name, else options.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/model/shape.h"

namespace cairn {

struct RunConfig {
  std::optional<double> size_b;    // parameters, 10^9, if the shape is not known
  std::optional<double> active_b;  // of a mixture those that a token visits
  std::optional<int64_t> gpus, nodes, gpus_per_node;
  std::optional<int64_t> tp, pp, dp, cp;
  std::optional<int64_t> virtual_layers;  // layers per virtual pipeline stage
  std::optional<int64_t> mbs, gbs, gas;
  std::optional<int64_t> zero;
  std::optional<int64_t> layers, hidden, heads, ffn, seq, vocab, padded_vocab;
  std::optional<int64_t> kv_heads, head_dim;
  std::optional<int64_t> experts, experts_per_token, expert_ffn, shared_ffn, ep, etp;
  std::optional<int64_t> query_rank, key_value_rank, rotated_dim, unrotated_dim,
      value_dim;  // latent attention
  std::optional<int64_t> train_iters, log_interval, save_interval;
  std::optional<bool> recompute;
  std::optional<bool> gated;    // MLP
  std::optional<bool> grouped;  // false: ignore kv_heads, because Megatron prints 1 if there are none
  std::optional<bool> untied;   // output layer
  std::optional<bool> mixture;  // of experts
  std::optional<bool> latent;   // attention
  std::optional<std::string>
      mixture_layers;                    // Megatron's moe_layer_freq: "2", "[0, 1, 1]"; empty: all layers
  std::optional<std::string> precision;  // fp16, bf16, fp32

  bool operator==(const RunConfig&) const = default;
  bool IsMixture() const { return mixture.value_or(experts.value_or(0) > 1); }
  bool empty() const { return *this == RunConfig{}; }
};

// A field that is a count, and its names. Several are separated by blanks.
struct ConfigCount {
  std::optional<int64_t> RunConfig::*field;
  std::string_view name;
  std::string_view long_name;  // Megatron's, in dumps and flags
  std::string_view what;
  std::string_view words = {};        // in names of files and headings of tables, like `name`; only letters
  std::string_view other_names = {};  // in dumps and flags of other programs and versions
};
std::span<const ConfigCount> ConfigCounts();
// The count for a word in the name of a file or the heading of a table, or for a name in a dump or flag (with
// _). Null if none.
const ConfigCount* CountOfWord(std::string_view word);
const ConfigCount* CountOfName(std::string_view name);

// Fills in the missing fields of `config` from `other`.
void FillFrom(const RunConfig& other, RunConfig& config);

// Fills in the fields that follow from others: DP = GPUs / (TP·PP·CP), GBS = MBS·GAS·DP, and their inverses.
void Derive(RunConfig& config);

// The number of fields that both know and that are equal; nullopt if one of the model, the topology or the
// batch is not.
std::optional<int> EqualFields(const RunConfig& a, const RunConfig& b);
inline bool Agree(const RunConfig& a, const RunConfig& b) { return EqualFields(a, b).has_value(); }

// The model, for size and FLOPs: unknown facts are GPT-2's, and the vocabulary is padded as the program
// padded it. nullopt if layers, hidden size, sequence or vocabulary are unknown or absurd, or the experts of
// a mixture.
std::optional<ModelShape> ShapeOf(const RunConfig& config);

// Parameters of that shape, exact for GPT-2; or size_b; nullopt if neither is known.
std::optional<double> Parameters(const RunConfig& config);
// Those that a token visits; all of a dense model.
std::optional<double> ActiveParameters(const RunConfig& config);

}  // namespace cairn
