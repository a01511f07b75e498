#include "ckpt/model/gpt_specs.h"

#include <algorithm>

namespace cairn {

std::vector<ParameterSpec> GptSpecs(const ModelShape& shape) {
  std::vector<ParameterSpec> specs;
  const auto& modules = CanonicalModules();
  const auto add = [&](const ModuleSet& set, int place, int layer) {
    const auto add_group = [&](auto first, auto last, bool bias) {
      for (auto module = first; module != last; ++module)
        if (set.Has(*module, bias)) specs.push_back(SpecOf(*module, bias, layer, shape));
    };
    for (auto first = modules.begin(), last = first; first != modules.end(); first = last) {
      last = std::find_if_not(first + 1, modules.end(), [](const auto& module) { return module.fused; });
      if (first->place != place) continue;
      add_group(first, last, /*bias=*/false);
      add_group(first, last, /*bias=*/true);
    }
  };
  ModuleSet outside = shape.modules.outside();
  if (!shape.tied) outside.Add(*FindCanonicalModule("output"), /*bias=*/false);
  add(outside, kBeforeLayers, 0);
  for (int layer = 0; layer < shape.layers; ++layer) add(shape.modules.layer(layer), 0, layer);
  add(outside, kAfterLayers, 0);
  for (int layer = static_cast<int>(shape.layers); layer < shape.AllLayers(); ++layer)
    add(shape.modules.mtp(static_cast<uint64_t>(layer - shape.layers)), 0, layer);
  return specs;
}

}  // namespace cairn
