#include "ckpt/model/gpt_specs.h"

namespace cairn {
namespace {

// Appends the parameters of one module after another.
class SpecList {
 public:
  explicit SpecList(const ModelShape& shape) : shape_(shape) {}

  ParameterSpec& Add(std::string_view module, int layer, bool bias = false) {
    specs_.push_back(SpecOf(*FindCanonicalModule(module), bias, layer, shape_));
    return specs_.back();
  }

  // The weights of modules that are one matrix in memory, then their biases.
  void AddFused(std::initializer_list<std::string_view> modules, int layer, bool weight, bool bias) {
    for (const bool is_bias : {false, true})
      for (const std::string_view module : modules)
        if (is_bias ? bias : weight) Add(module, layer, is_bias);
  }

  std::vector<ParameterSpec> Take() { return std::move(specs_); }

 private:
  const ModelShape& shape_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::vector<ParameterSpec> GptSpecs(const ModelShape& shape) {
  const GptTensors& has = shape.has;
  SpecList list(shape);
  const auto add_norm = [&](std::string_view module, int layer) {
    list.AddFused({module}, layer, has.norm_weight, has.norm_weight && has.norm_bias);
  };
  list.Add("embedding.word", kBeforeLayers).tied_to_last = shape.tied;
  if (has.positions) list.Add("embedding.position", kBeforeLayers);
  if (has.position_offset) list.Add("embedding.position_offset", kBeforeLayers);
  if (has.embedding_norm) add_norm("embedding.norm", kBeforeLayers);
  for (int layer = 0; layer < shape.layers; ++layer) {
    add_norm("input_norm", layer);
    list.AddFused({"attention.query", "attention.key", "attention.value"}, layer, true,
                  has.query_key_value_bias);
    if (has.query_key_norm) add_norm("attention.query_norm", layer);
    if (has.query_key_norm) add_norm("attention.key_norm", layer);
    list.AddFused({"attention.output"}, layer, true, has.attention_output_bias);
    add_norm("post_attention_norm", layer);
    if (has.gate)
      list.AddFused({"mlp.gate", "mlp.up"}, layer, true, has.mlp_bias);
    else
      list.AddFused({"mlp.up"}, layer, true, has.mlp_bias);
    list.AddFused({"mlp.down"}, layer, true, has.mlp_bias);
  }
  add_norm("final_norm", kAfterLayers);
  if (!shape.tied) list.Add("output", kAfterLayers);
  return list.Take();
}

}  // namespace cairn
