#include "convert/formats/megatron/megatron_modules.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// Names of other programs and versions: Megatron-LM v1 to v2 and the legacy models after, and Megatron-Core
// with Transformer Engine's fused norms or without.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"input_norm", "input_layernorm"},
    {"self_attention.linear_qkv.layer_norm", "input_layernorm"},
    {"attention.query_key_value", "self_attention.query_key_value"},
    {"self_attention.linear_qkv", "self_attention.query_key_value"},
    {"attention.dense", "self_attention.dense"},
    {"self_attention.linear_proj", "self_attention.dense"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"pre_mlp_layernorm", "post_attention_layernorm"},
    {"mlp.linear_fc1.layer_norm", "post_attention_layernorm"},
    {"mlp.linear_fc1", "mlp.dense_h_to_4h"},
    {"mlp.linear_fc2", "mlp.dense_4h_to_h"},
    {"final_norm", "final_layernorm"},
    {"lm_head", "output_layer"},
};

}  // namespace

std::span<const MegatronModule> MegatronModules() {
  using enum MegatronPlace;
  static const std::vector<MegatronModule> kModules = {
      {"word_embeddings", kBeforeLayers, {"embedding.word"}},
      {"position_embeddings", kBeforeLayers, {"embedding.position"}},
      {"word_embeddings.norm", kBeforeLayers, {"embedding.norm"}},
      {"input_layernorm", kInLayer, {"input_norm"}},
      {"self_attention.query_key_value", kInLayer, {"attention.query", "attention.key", "attention.value"}},
      {"self_attention.q_layernorm", kInLayer, {"attention.query_norm"}},
      {"self_attention.k_layernorm", kInLayer, {"attention.key_norm"}},
      {"self_attention.dense", kInLayer, {"attention.output"}},
      {"post_attention_layernorm", kInLayer, {"post_attention_norm"}},
      {"mlp.dense_h_to_4h", kInLayer, {"mlp.gate", "mlp.up"}},
      {"mlp.dense_4h_to_h", kInLayer, {"mlp.down"}},
      {"final_layernorm", kAfterLayers, {"final_norm"}},
      {"output_layer", kAfterLayers, {"output"}},
  };
  return kModules;
}

const MegatronModule* FindMegatronModule(std::string_view stored) {
  const auto other = std::ranges::find(kOtherNames, stored, [](const auto& names) { return names.first; });
  if (other != std::end(kOtherNames)) stored = other->second;
  const auto modules = MegatronModules();
  const auto found = std::ranges::find(modules, stored, &MegatronModule::name);
  return found == modules.end() ? nullptr : &*found;
}

}  // namespace cairn
