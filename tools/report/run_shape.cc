// The model that a log describes: its sizes, then the modules of its layers.

#include <algorithm>
#include <string>
#include <vector>

#include "tools/report/numbers.h"
#include "tools/report/run_config.h"

namespace cairn {
namespace {

constexpr int64_t kLargestSide = 1'000'000'000;  // of a model

bool IsPossible(const std::optional<int64_t>& side) { return side && *side > 0 && *side <= kLargestSide; }

// Which layers are mixtures. nullopt if the text is neither a number nor a list of one for each layer.
std::optional<std::vector<bool>> MixtureLayers(const std::string& text, int64_t layers) {
  std::vector<bool> mixtures(layers, true);
  if (text.empty()) return mixtures;
  if (const auto every = CountAt(text)) {
    for (int64_t i = 0; i < layers; ++i) mixtures[i] = *every > 0 && i % *every == 0;
    return mixtures;
  }
  int64_t listed = 0;
  if (!text.starts_with('[') || !text.ends_with(']')) return std::nullopt;
  for (const char c : std::string_view(text).substr(1, text.size() - 2)) {
    if (c == ',' || c == ' ') continue;
    if ((c != '0' && c != '1') || listed == layers) return std::nullopt;
    mixtures[listed++] = c == '1';
  }
  return listed == layers ? std::optional(mixtures) : std::nullopt;
}

bool IsLatent(const RunConfig& config) {
  return config.latent.value_or(false) && IsPossible(config.key_value_rank) && IsPossible(config.heads) &&
         IsPossible(config.rotated_dim) && IsPossible(config.unrotated_dim) && IsPossible(config.value_dim);
}

void TakeLatentAttention(const RunConfig& config, ModelShape& shape) {
  shape.query_rank = config.query_rank.value_or(0);
  shape.key_value_rank = *config.key_value_rank;
  shape.rotated_dim = *config.rotated_dim;
  shape.head_dim = *config.unrotated_dim + *config.rotated_dim;
  shape.value_head_dim = *config.value_dim;
}

// False if a size is unknown.
bool TakeExperts(const RunConfig& config, ModelShape& shape) {
  if (!IsPossible(config.experts) || !IsPossible(config.experts_per_token)) return false;
  shape.experts = *config.experts;
  shape.experts_per_token = *config.experts_per_token;
  shape.expert_ffn = IsPossible(config.expert_ffn) ? *config.expert_ffn : shape.Ffn();
  shape.shared_ffn = config.shared_ffn.value_or(0);
  return shape.experts_per_token <= shape.experts;
}

}  // namespace

std::optional<ModelShape> ShapeOf(const RunConfig& config) {
  const auto vocab = config.padded_vocab ? config.padded_vocab : config.vocab;
  if (!IsPossible(config.layers) || !IsPossible(config.hidden) || !IsPossible(config.seq) ||
      !IsPossible(vocab))
    return std::nullopt;
  DenseModules modules = config.gated.value_or(false) ? kLlamaModules : DenseModules();
  modules.positions = !config.latent.value_or(false);  // no log says that a model has none
  ModelShape shape{.layers = *config.layers,
                   .hidden = *config.hidden,
                   .heads = 1,
                   .seq = *config.seq,
                   .vocab = *vocab,
                   .vocab_multiple = 1,
                   .tied = !config.untied.value_or(false),
                   .modules = modules};
  if (IsPossible(config.heads) && (IsPossible(config.head_dim) || shape.hidden % *config.heads == 0)) {
    shape.heads = *config.heads;
    shape.head_dim = IsPossible(config.head_dim) ? *config.head_dim : 0;
    if (IsPossible(config.kv_heads) && config.grouped.value_or(true)) shape.kv_heads = *config.kv_heads;
  }
  if (IsPossible(config.ffn))
    shape.ffn = *config.ffn;
  else if (shape.IsGated())  // Megatron-LM's default
    shape.ffn = std::max<int64_t>(64, shape.hidden * 8 / 3 / 64 * 64);
  const bool latent = IsLatent(config), mixture = config.IsMixture();
  if (!latent && !mixture) return config.latent.value_or(false) ? std::nullopt : std::optional(shape);
  if (shape.layers > kMaxLayers || (mixture && !TakeExperts(config, shape))) return std::nullopt;
  if (latent) TakeLatentAttention(config, shape);
  const auto mixtures = mixture ? MixtureLayers(config.mixture_layers.value_or(""), shape.layers)
                                : std::optional(std::vector<bool>(shape.layers, false));
  if (!mixtures) return std::nullopt;
  shape.modules = shape.modules.With({.layers = mixtures->size(),
                                      .latent = latent,
                                      .query_down = shape.query_rank != 0,
                                      .is_mixture = [&](uint64_t layer) { return (*mixtures)[layer]; },
                                      .shared_expert = shape.shared_ffn != 0});
  return shape;
}

std::optional<double> Parameters(const RunConfig& config) {
  if (const auto shape = ShapeOf(config)) return shape->TotalParams();
  if (config.size_b) return *config.size_b * 1e9;
  return std::nullopt;
}

std::optional<double> ActiveParameters(const RunConfig& config) {
  if (!config.IsMixture()) return Parameters(config);
  if (const auto shape = ShapeOf(config)) return shape->ActiveParams();
  if (config.active_b) return *config.active_b * 1e9;
  return std::nullopt;
}

}  // namespace cairn
