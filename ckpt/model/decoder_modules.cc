#include "ckpt/model/decoder_modules.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

// The word of its bit, and the bit.
std::pair<size_t, uint64_t> BitOf(const CanonicalModule& module) {
  const auto index = static_cast<size_t>(&module - CanonicalModules().data());
  return {index / 64, uint64_t{1} << index % 64};
}

void AddNamed(std::string_view name, ModuleSet& set) {
  if (const CanonicalModule* module = ModuleOfParameter(name)) set.Add(*module, name.ends_with(".bias"));
}

void AddAll(ModuleSet& set, std::initializer_list<std::string_view> names, bool bias) {
  for (const std::string_view name : names) {
    set.Add(*FindCanonicalModule(name), false);
    if (bias) set.Add(*FindCanonicalModule(name), true);
  }
}

void MakeLatent(const LayerChoices& choices, ModuleSet& layer) {
  for (const char* replaced : {"attention.query", "attention.key", "attention.value"})
    layer.RemoveAll(replaced);
  AddAll(layer, {"attention.key_value_down", "attention.key_value_up"}, false);
  AddAll(layer, {choices.query_down ? "attention.query_up" : "attention.query"}, false);
  if (choices.query_down) AddAll(layer, {"attention.query_down"}, false);
  if (choices.latent_norms) AddAll(layer, {"attention.key_value_down_norm"}, false);
  if (choices.latent_norms && choices.query_down) AddAll(layer, {"attention.query_down_norm"}, false);
}

void MakeMixture(const LayerChoices& choices, ModuleSet& layer) {
  const bool gated = layer.Has("mlp.gate");
  layer.RemoveAll("mlp.");
  AddAll(layer, {"mlp.router", "mlp.experts.up", "mlp.experts.down"}, choices.expert_bias);
  if (gated) AddAll(layer, {"mlp.experts.gate"}, choices.expert_bias);
  if (choices.router_correction) AddAll(layer, {"mlp.router_correction"}, false);
  if (!choices.shared_expert) return;
  AddAll(layer, {"mlp.shared.up", "mlp.shared.down"}, false);
  if (gated) AddAll(layer, {"mlp.shared.gate"}, false);
  if (choices.shared_gate) AddAll(layer, {"mlp.shared_gate"}, false);
}

}  // namespace

bool ModuleSet::Has(const CanonicalModule& module, bool bias) const {
  const auto [word, bit] = BitOf(module);
  return ((bias ? biases_ : weights_)[word] & bit) != 0;
}
bool ModuleSet::Has(std::string_view name) const { return Has(*FindCanonicalModule(name), false); }
bool ModuleSet::HasBias(std::string_view name) const { return Has(*FindCanonicalModule(name), true); }
void ModuleSet::Add(const CanonicalModule& module, bool bias) {
  const auto [word, bit] = BitOf(module);
  (bias ? biases_ : weights_)[word] |= bit;
}
void ModuleSet::RemoveAll(std::string_view begin) {
  for (const CanonicalModule& module : CanonicalModules())
    if (module.name.starts_with(begin)) {
      const auto [word, bit] = BitOf(module);
      weights_[word] &= ~bit;
      biases_[word] &= ~bit;
    }
}

DecoderModules::DecoderModules(const DenseModules& dense) : kinds_(1) {
  AddAll(outside_, {"embedding.word"}, false);
  if (dense.positions) AddAll(outside_, {"embedding.position"}, false);
  if (dense.embedding_norm) AddAll(outside_, {"embedding.norm"}, dense.norm_bias);
  AddAll(outside_, {"final_norm"}, dense.norm_bias);
  ModuleSet& layer = kinds_[0];
  AddAll(layer, {"input_norm", "post_attention_norm"}, dense.norm_bias);
  AddAll(layer, {"attention.query", "attention.key", "attention.value"}, dense.query_key_value_bias);
  if (dense.query_key_norm) AddAll(layer, {"attention.query_norm", "attention.key_norm"}, dense.norm_bias);
  if (dense.sinks) AddAll(layer, {"attention.sinks"}, false);
  AddAll(layer, {"attention.output", "mlp.up", "mlp.down"}, dense.linear_bias);
  if (dense.gate) AddAll(layer, {"mlp.gate"}, dense.linear_bias);
}

DecoderModules DecoderModules::Among(const std::set<std::string_view>& names) {
  DecoderModules modules;
  modules.outside_ = {};
  std::map<uint64_t, ModuleSet> layers, mtp;
  for (std::string_view name : names) {
    uint64_t layer = 0;
    const std::string_view in = TakeLayer(name, layer);
    const bool outside = !name.starts_with(kInLayers) && name.substr(0, name.rfind('.')) != "output";
    if (!in.empty())
      AddNamed(name, (in == kInMtp ? mtp : layers)[layer]);
    else if (outside)
      AddNamed(name, modules.outside_);
  }
  for (auto& [layer, set] : mtp) {
    modules.mtp_.resize(layer + 1);
    modules.mtp_[layer] = set;
  }
  modules.kinds_.clear();
  for (const auto& [layer, set] : layers) modules.SetLayer(layer, set);
  if (modules.kinds_.empty()) modules.kinds_.emplace_back();
  if (modules.kinds_.size() == 1) modules.layers_.clear();
  return modules;
}

DecoderModules DecoderModules::With(const LayerChoices& choices) const {
  DecoderModules modules = *this;
  modules.kinds_.clear();
  modules.layers_.clear();
  ModuleSet dense = kinds_[0];
  if (choices.latent) MakeLatent(choices, dense);
  ModuleSet mixture = dense;
  MakeMixture(choices, mixture);
  const uint64_t layers = std::max<uint64_t>(1, choices.layers);
  for (uint64_t i = 0; i < layers; ++i)
    modules.SetLayer(i, choices.is_mixture && choices.is_mixture(i) ? mixture : dense);
  if (modules.kinds_.size() == 1) modules.layers_.clear();
  ModuleSet mtp = modules.layer(layers - 1);
  AddAll(mtp, {"projection"}, false);
  AddAll(mtp, {"embedding_norm", "hidden_norm", "prediction_norm"}, HasBias("final_norm"));
  modules.mtp_.assign(choices.mtp_layers, mtp);
  return modules;
}

void DecoderModules::SetLayer(uint64_t layer, const ModuleSet& set) {
  layers_.resize(layer + 1);
  const auto kind = std::ranges::find(kinds_, set);
  layers_[layer] = kind - kinds_.begin();
  if (kind == kinds_.end()) kinds_.push_back(set);
}

bool DecoderModules::Has(std::string_view name) const {
  return outside_.Has(name) || std::ranges::any_of(kinds_, [&](const auto& kind) { return kind.Has(name); });
}

bool DecoderModules::HasBias(std::string_view name) const {
  return outside_.HasBias(name) ||
         std::ranges::any_of(kinds_, [&](const auto& kind) { return kind.HasBias(name); });
}

void DecoderModules::ForEachKind(uint64_t begin, uint64_t end,
                                 const std::function<void(const ModuleSet&, double)>& visit) const {
  std::vector<double> counts(kinds_.size());
  if (layers_.empty()) counts[0] = static_cast<double>(end - begin);
  for (uint64_t layer = begin; !layers_.empty() && layer < end; ++layer)
    ++counts[layers_[std::min<uint64_t>(layer, layers_.size() - 1)]];
  for (size_t kind = 0; kind < kinds_.size(); ++kind)
    if (counts[kind] > 0) visit(kinds_[kind], counts[kind]);
}

double DecoderModules::LayerMean(const std::function<double(const ModuleSet&)>& value) const {
  const size_t layers = std::max<size_t>(1, layers_.size());
  double sum = 0;
  ForEachKind(0, layers, [&](const ModuleSet& kind, double count) { sum += count * value(kind); });
  return sum / static_cast<double>(layers);
}

}  // namespace cairn
