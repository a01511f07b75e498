// Sizes are bounded before anything is multiplied: products of two of them, and of boxes, cannot overflow or
// exhaust memory.

#include "ckpt/model/shape.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

constexpr int64_t kMaxHeadBoxes = 1 << 24;  // layers times heads, or experts
constexpr int64_t kMaxElements = int64_t{1} << 59;

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

Result<ModelShape> ReadShape(const nlohmann::json& model) {
  Status status;
  const auto read = [&](const char* name, int64_t fallback, int64_t least = 1) -> int64_t {
    const auto found = model.find(name);
    const bool is_missing = found == model.end() || found->is_null();
    if (is_missing && fallback >= 0) return fallback;
    if (!is_missing && found->is_number_integer() && *found >= least && *found <= kMaxModelSize)
      return found->get<int64_t>();
    if (status.ok())
      status = InvalidArgument("the model's {} is {}; it must be a positive integer, at most {}", name,
                               found == model.end() ? "missing" : found->dump(), kMaxModelSize);
    return 1;
  };
  ModelShape shape;
  shape.layers = read("num_layers", -1);
  shape.mtp_layers = read("mtp_layers", 0, 0);
  shape.hidden = read("hidden_size", -1);
  shape.heads = read("num_attention_heads", -1);
  shape.vocab = read("vocab_size", -1);
  shape.kv_heads = read("num_key_value_heads", shape.heads);
  shape.head_dim = read("head_dim", std::max<int64_t>(1, shape.hidden / shape.heads));
  shape.ffn = read("ffn_hidden_size", 4 * shape.hidden);
  shape.positions = read("max_position_embeddings", 0);
  shape.query_rank = read("q_lora_rank", 0);
  shape.key_value_rank = read("kv_lora_rank", 0);
  shape.rotated_dim = read("qk_rope_head_dim", 0);
  shape.value_head_dim = read("v_head_dim", 0);
  shape.experts = read("num_experts", 0);
  const int64_t width = shape.experts > 0 ? shape.ffn : 0;
  shape.expert_ffn = read("moe_ffn_hidden_size", width);
  shape.shared_ffn = read("shared_expert_ffn_hidden_size", width);
  shape.experts_per_token = read("num_experts_per_token", 0);
  CAIRN_RETURN_IF_ERROR(status);
  if (model.value("head_dim", nlohmann::json()).is_null() && shape.hidden % shape.heads != 0)
    return InvalidArgument("the model's {} attention heads do not divide its hidden size {}", shape.heads,
                           shape.hidden);
  if (shape.rotated_dim > shape.head_dim)
    return InvalidArgument("the model's heads of {} elements cannot rotate {}", shape.head_dim,
                           shape.rotated_dim);
  if (shape.heads % shape.kv_heads != 0)
    return InvalidArgument("the model's {} key and value heads do not divide its {} attention heads",
                           shape.kv_heads, shape.heads);
  if (shape.AllLayers() > kMaxLayers || shape.AllLayers() * shape.heads > kMaxHeadBoxes)
    return InvalidArgument("the model has {} layers of {} heads; is its description damaged?",
                           shape.AllLayers(), shape.heads);
  if (shape.experts > kMaxHeadBoxes / shape.AllLayers() ||
      shape.experts > kMaxElements / std::max<int64_t>(1, shape.expert_ffn) / shape.hidden)
    return InvalidArgument("the model has {} experts of {} x {} in {} layers; is its description damaged?",
                           shape.experts, shape.expert_ffn, shape.hidden, shape.layers);
  return shape;
}

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

double ModelShape::LayerMatrices() const {
  return modules.LayerMean([this](const ModuleSet& layer) { return CountsOf(layer).matrices; });
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
