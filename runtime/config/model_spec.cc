#include "runtime/config/model_spec.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace cairn {
namespace {

// Collects the specs of one layer (or of what surrounds the layers).
class Builder {
 public:
  explicit Builder(std::vector<ParameterSpec>& specs) : specs_(specs) {}

  void At(int layer, std::string prefix) {
    layer_ = layer;
    prefix_ = std::move(prefix);
  }
  ParameterSpec& Add(std::string_view name, Dims shape, int tp_dim = kReplicated, uint64_t tp_unit = 1) {
    return specs_.emplace_back(ParameterSpec{.name = fmt::format("{}{}", prefix_, name),
                                             .shape = shape,
                                             .tp_dim = tp_dim,
                                             .tp_unit = tp_unit,
                                             .layer = layer_});
  }
  void Norm(std::string_view name, uint64_t width) {
    Add(fmt::format("{}.weight", name), {width});
    Add(fmt::format("{}.bias", name), {width});
  }

 private:
  std::vector<ParameterSpec>& specs_;
  int layer_ = kBeforeLayers;
  std::string prefix_;
};

void AddLayer(Builder& add, const TrainConfig& config) {
  const uint64_t h = config.hidden_size;
  const uint64_t f = config.ffn();
  const uint64_t head = config.head_dim();
  add.Norm("input_norm", h);
  for (const char* part : {"query", "key", "value"})
    add.Add(fmt::format("attention.{}.weight", part), {h, h}, 0, head);
  for (const char* part : {"query", "key", "value"})
    add.Add(fmt::format("attention.{}.bias", part), {h}, 0, head);
  add.Add("attention.output.weight", {h, h}, 1, head);
  add.Add("attention.output.bias", {h});
  add.Norm("post_attention_norm", h);
  add.Add("mlp.up.weight", {f, h}, 0);
  add.Add("mlp.up.bias", {f}, 0);
  add.Add("mlp.down.weight", {h, f}, 1);
  add.Add("mlp.down.bias", {h});
}

}  // namespace

std::vector<ParameterSpec> GptSpecs(const TrainConfig& config) {
  const uint64_t h = config.hidden_size;
  const uint64_t vocabulary = config.vocab_size;
  std::vector<ParameterSpec> specs;
  Builder add(specs);
  ParameterSpec& word = add.Add("embedding.word.weight", {vocabulary, h}, 0);
  word.pad_multiple = config.make_vocab_size_divisible_by;
  word.tied_to_last = !config.untie_embeddings_and_output_weights;
  add.Add("embedding.position.weight", {static_cast<uint64_t>(config.positions()), h});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    add.At(layer, fmt::format("layers.{}.", layer));
    AddLayer(add, config);
  }
  add.At(kAfterLayers, "");
  add.Norm("final_norm", h);
  if (config.untie_embeddings_and_output_weights)
    add.Add("output.weight", {vocabulary, h}, 0).pad_multiple = config.make_vocab_size_divisible_by;
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
