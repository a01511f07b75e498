#include "runtime/config/model_spec.h"

#include <nlohmann/json.hpp>

#include "ckpt/model/gpt_specs.h"

namespace cairn {
namespace {

ModelSizes SizesOf(const TrainConfig& config) {
  const auto heads = static_cast<uint64_t>(config.num_attention_heads);
  return {.layers = static_cast<uint64_t>(config.num_layers),
          .hidden = static_cast<uint64_t>(config.hidden_size),
          .heads = heads,
          .key_value_heads = heads,
          .head = static_cast<uint64_t>(config.head_dim()),
          .ffn = static_cast<uint64_t>(config.ffn()),
          .vocab = static_cast<uint64_t>(config.vocab_size),
          .positions = static_cast<uint64_t>(config.positions())};
}

}  // namespace

std::vector<ParameterSpec> GptSpecs(const TrainConfig& config) {
  return GptSpecs(SizesOf(config), !config.untie_embeddings_and_output_weights,
                  static_cast<uint64_t>(config.make_vocab_size_divisible_by));
}

nlohmann::json ModelFacts(const TrainConfig& config) {
  return {{"architecture", "gpt2"},
          {"num_layers", config.num_layers},
          {"hidden_size", config.hidden_size},
          {"num_attention_heads", config.num_attention_heads},
          {"ffn_hidden_size", config.ffn()},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.positions()},
          {"tied_embeddings", !config.untie_embeddings_and_output_weights},
          {"layernorm_epsilon", config.layernorm_epsilon}};
}

uint64_t CountParameters(const std::vector<ParameterSpec>& specs) {
  uint64_t count = 0;
  for (const ParameterSpec& spec : specs) count += spec.shape.Volume();
  return count;
}

}  // namespace cairn
