// The model that a log describes: its sizes, then the modules of its layers, by the names that they would
// have in a checkpoint (ckpt/FORMAT.md).

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "ckpt/model/canonical_modules.h"
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

// The modules that take the place of "attention.query", "key" and "value", and of those of the MLP.
std::vector<std::string> LatentModules(const ModelShape& shape) {
  std::vector<std::string> names = {"attention.key_value_down", "attention.key_value_down_norm",
                                    "attention.key_value_up"};
  if (shape.query_rank == 0) return names.emplace_back("attention.query"), names;
  names.insert(names.end(), {"attention.query_down", "attention.query_down_norm", "attention.query_up"});
  return names;
}
std::vector<std::string> MixtureModules(const ModelShape& shape, bool gated) {
  std::vector<std::string> names = {"mlp.router"};
  for (const char* mlp : {"mlp.experts.", "mlp.shared."}) {
    if (mlp == std::string_view("mlp.shared.") && shape.shared_ffn == 0) continue;
    for (const char* side : {"up", "down"}) names.push_back(std::string(mlp) + side);
    if (gated) names.push_back(std::string(mlp) + "gate");
  }
  return names;
}

// The modules of layers that are like those of `dense`, but for latent attention and mixtures.
DecoderModules ModulesOf(const ModelShape& shape, const DecoderModules& dense,
                         const std::vector<bool>& mixtures) {
  std::set<std::string> names;
  const auto add = [&](const CanonicalModule& module, const ModuleSet& set, const std::string& prefix) {
    for (const bool bias : {false, true})
      if (set.Has(module, bias))
        names.insert(fmt::format("{}{}.{}", prefix, module.name, bias ? "bias" : "weight"));
  };
  const bool latent = shape.key_value_rank > 0;
  for (size_t layer = 0; layer < mixtures.size(); ++layer) {
    const std::string prefix = fmt::format("{}{}.", kInLayers, layer);
    std::vector<std::string> more;
    if (latent) more = LatentModules(shape);
    if (mixtures[layer])
      std::ranges::move(MixtureModules(shape, dense.Has("mlp.gate")), std::back_inserter(more));
    for (const std::string& name : more) names.insert(prefix + name + ".weight");
    for (const CanonicalModule& module : CanonicalModules()) {
      const bool qkv = module.name == "attention.query" || module.name == "attention.key" ||
                       module.name == "attention.value";
      if ((latent && qkv) || (mixtures[layer] && module.name.starts_with("mlp."))) continue;
      add(module, dense.layer(layer), prefix);
    }
  }
  for (const CanonicalModule& module : CanonicalModules()) add(module, dense.outside(), "");
  return DecoderModules::Among({names.begin(), names.end()});
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
  shape.modules = ModulesOf(shape, shape.modules, *mixtures);
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
