#include "ckpt/model/gpt_specs.h"

namespace cairn {
namespace {

constexpr std::string_view kFusedModules[] = {"attention.query", "attention.key", "attention.value"};
constexpr std::string_view kBehindFused[] = {"attention.output", "post_attention_norm", "mlp.up", "mlp.down"};

}  // namespace

std::vector<ParameterSpec> GptSpecs(const ModelSizes& sizes, bool tied, uint64_t vocab_multiple) {
  std::vector<ParameterSpec> specs;
  const auto add = [&](std::string_view module, bool bias, int layer) -> ParameterSpec& {
    specs.push_back(SpecOf(*FindCanonicalModule(module), bias, layer, sizes));
    if (specs.back().pad_multiple > 0) specs.back().pad_multiple = vocab_multiple;
    return specs.back();
  };
  const auto add_both = [&](std::string_view module, int layer) {
    for (const bool bias : {false, true}) add(module, bias, layer);
  };
  add("embedding.word", false, kBeforeLayers).tied_to_last = tied;
  add("embedding.position", false, kBeforeLayers);
  for (int layer = 0; layer < static_cast<int>(sizes.layers); ++layer) {
    add_both("input_norm", layer);
    for (const bool bias : {false, true})
      for (const std::string_view part : kFusedModules) add(part, bias, layer);
    for (const std::string_view module : kBehindFused) add_both(module, layer);
  }
  add_both("final_norm", kAfterLayers);
  if (!tied) add("output", false, kAfterLayers);
  return specs;
}

}  // namespace cairn
