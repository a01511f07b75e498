#include "ckpt/model/shape.h"

#include <algorithm>

#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

// Parameters of the weight, and of the bias.
std::pair<double, double> SizesOf(const ModuleSet& modules, const CanonicalModule& module,
                                  const ModelShape& shape) {
  if (!modules.Has(module, false) || module.keeps_type) return {};
  const auto volume = [&](size_t dimensions) {
    double product = 1;
    for (size_t i = 0; i < dimensions; ++i) product *= static_cast<double>(module.extents[i](shape));
    return product;
  };
  const size_t rank = module.extents.size();
  return {volume(rank), modules.Has(module, true) ? volume(std::max<size_t>(1, rank - 1)) : 0};
}

}  // namespace

ParameterCounts ModelShape::CountsOf(const ModuleSet& layer) const {
  ParameterCounts counts;
  for (const CanonicalModule& module : CanonicalModules()) {
    const auto [weight, bias] = SizesOf(layer, module, *this);
    const bool is_matrix = module.extents.size() > 1;
    counts.all += weight + bias;
    if (is_matrix) counts.matrices += weight;
    if (is_matrix && module.cuts.empty()) counts.whole += weight;
    if (!module.of_experts()) continue;
    counts.experts += weight + bias;
    counts.expert_matrices += weight;
  }
  return counts;
}

double ModelShape::LayerParams() const {
  return modules.LayerMean([this](const ModuleSet& layer) { return CountsOf(layer).all; });
}

double ModelShape::ActiveLayerMatrices() const {
  const bool idle = experts > 0 && experts_per_token > 0;
  const double share = idle ? 1 - static_cast<double>(experts_per_token) / experts : 0;  // of experts
  return modules.LayerMean([&](const ModuleSet& layer) {
    const ParameterCounts counts = CountsOf(layer);
    return counts.matrices - share * counts.expert_matrices;
  });
}

double ModelShape::TotalParams() const {
  double params = CountsOf(modules.outside()).all + (tied ? 0 : EmbeddingParams());
  modules.ForEachKind(0, layers,
                      [&](const ModuleSet& kind, double count) { params += count * CountsOf(kind).all; });
  for (int64_t i = 0; i < mtp_layers; ++i) params += CountsOf(modules.mtp(static_cast<uint64_t>(i))).all;
  return params;
}

double ModelShape::ActiveParams() const {
  double params = TotalParams();
  if (experts == 0 || experts_per_token == 0) return params;
  const double idle = static_cast<double>(experts - experts_per_token), all = static_cast<double>(experts);
  modules.ForEachKind(0, layers, [&](const ModuleSet& kind, double count) {
    params -= count * CountsOf(kind).experts * idle / all;
  });
  return params;
}

}  // namespace cairn
