// Parses a name in a Megatron checkpoint: which layer, and which module of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cairn {

struct MegatronName {
  int layer;  // as the name counts, which is within a pipeline stage in most formats; or kBeforeLayers,
              // kAfterLayers
  std::string name;  // "self_attention.dense.weight"
  bool mtp = false;  // of multi-token prediction, whose layers are counted from 0 again
};

// Before the key of an optimizer's state, after which its parameter is named.
inline constexpr std::string_view kOptimizerState = "optimizer.state.";

// What a layer of multi-token prediction calls the layer inside it. Newer code also says "mtp_model_layer.",
// which is only read.
inline constexpr std::string_view kInsideMtp = "transformer_layer.";

// Parses "language_model.encoder.layers.3.self_attention.dense.weight", "decoder.final_layernorm.bias" and
// the like, inside any wrappers; nullopt for other names, and for those of multi-token prediction
// ("mtp.layers.0.enorm.weight") unless `mtp`.
std::optional<MegatronName> ParseMegatronName(std::string_view name, bool mtp = false);

// A tensor of experts of a rank, whose own numbers these are: one of SequentialMLP, of Transformer Engine's
// grouped layers, or of all experts in megatron-core's own before 0.17.
struct MegatronExpert {
  MegatronName name;               // as that of the tensor of all experts
  std::optional<uint64_t> expert;  // null: all of the rank
  bool is_down = false;
};
// "decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight", "….mlp.experts.linear_fc1.weight3" or
// "….mlp.experts.weight1"; nullopt for other names.
std::optional<MegatronExpert> ParseExpertName(std::string_view name);

// The last part of the name of a module's opaque state. With FP8 it has Transformer Engine's scales.
inline constexpr std::string_view kExtraState = "_extra_state";

// Buffers and opaque states of modules that hold no parameters.
bool IsMegatronBuffer(std::string_view name);

}  // namespace cairn
