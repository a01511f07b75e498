#include "runtime/config/model_spec.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

// A layer's modules in the order in which the trainer registers them; queries, keys and values are one matrix
// to it, whose weights come before their biases.
constexpr std::string_view kAttention[] = {"attention.query", "attention.key", "attention.value"};
constexpr std::string_view kBehindAttention[] = {"attention.output", "post_attention_norm", "mlp.up",
                                                 "mlp.down"};

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
  const ModelSizes sizes = SizesOf(config);
  std::vector<ParameterSpec> specs;
  const auto add = [&](std::string_view module, bool bias, int layer) -> ParameterSpec& {
    specs.push_back(SpecOf(*FindCanonicalModule(module), bias, layer, sizes));
    if (specs.back().pad_multiple > 0) specs.back().pad_multiple = config.make_vocab_size_divisible_by;
    return specs.back();
  };
  const auto add_both = [&](std::string_view module, int layer) {
    for (const bool bias : {false, true}) add(module, bias, layer);
  };
  add("embedding.word", false, kBeforeLayers).tied_to_last = !config.untie_embeddings_and_output_weights;
  add("embedding.position", false, kBeforeLayers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    add_both("input_norm", layer);
    for (const bool bias : {false, true})
      for (const std::string_view part : kAttention) add(part, bias, layer);
    for (const std::string_view module : kBehindAttention) add_both(module, layer);
  }
  add_both("final_norm", kAfterLayers);
  if (config.untie_embeddings_and_output_weights) add("output", false, kAfterLayers);
  return specs;
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
