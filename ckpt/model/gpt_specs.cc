#include "ckpt/model/gpt_specs.h"

namespace cairn {
namespace {

// Appends the parameters of one module after another.
class SpecList {
 public:
  SpecList(const ModelSizes& sizes, uint64_t vocab_multiple)
      : sizes_(sizes), vocab_multiple_(vocab_multiple) {}

  ParameterSpec& Add(std::string_view module, int layer, bool bias = false) {
    specs_.push_back(SpecOf(*FindCanonicalModule(module), bias, layer, sizes_));
    if (specs_.back().pad_multiple > 0) specs_.back().pad_multiple = vocab_multiple_;
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
  const ModelSizes& sizes_;
  uint64_t vocab_multiple_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::vector<ParameterSpec> GptSpecs(const ModelSizes& sizes, bool tied, uint64_t vocab_multiple,
                                    const GptTensors& has) {
  SpecList list(sizes, vocab_multiple);
  const auto add_norm = [&](std::string_view module, int layer) {
    list.AddFused({module}, layer, has.norm_weight, has.norm_weight && has.norm_bias);
  };
  list.Add("embedding.word", kBeforeLayers).tied_to_last = tied;
  if (has.positions) list.Add("embedding.position", kBeforeLayers);
  if (has.position_offset) list.Add("embedding.position_offset", kBeforeLayers);
  if (has.embedding_norm) add_norm("embedding.norm", kBeforeLayers);
  for (int layer = 0; layer < static_cast<int>(sizes.layers); ++layer) {
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
  if (!tied) list.Add("output", kAfterLayers);
  return list.Take();
}

}  // namespace cairn
