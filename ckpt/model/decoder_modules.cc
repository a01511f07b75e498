#include "ckpt/model/decoder_modules.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

uint64_t Bit(const CanonicalModule& module) { return uint64_t{1} << (&module - CanonicalModules().data()); }

void AddNamed(std::string_view name, ModuleSet& set) {
  if (const CanonicalModule* module = ModuleOfParameter(name)) set.Add(*module, name.ends_with(".bias"));
}

}  // namespace

bool ModuleSet::Has(const CanonicalModule& module, bool bias) const {
  return ((bias ? biases_ : weights_) & Bit(module)) != 0;
}
bool ModuleSet::Has(std::string_view name) const { return Has(*FindCanonicalModule(name), false); }
bool ModuleSet::HasBias(std::string_view name) const { return Has(*FindCanonicalModule(name), true); }
void ModuleSet::Add(const CanonicalModule& module, bool bias) { (bias ? biases_ : weights_) |= Bit(module); }

DecoderModules::DecoderModules(const DenseModules& dense) : kinds_(1) {
  const auto add = [](ModuleSet& set, std::initializer_list<std::string_view> names, bool bias) {
    for (const std::string_view name : names) {
      set.Add(*FindCanonicalModule(name), false);
      if (bias) set.Add(*FindCanonicalModule(name), true);
    }
  };
  add(outside_, {"embedding.word"}, false);
  if (dense.positions) add(outside_, {"embedding.position"}, false);
  if (dense.embedding_norm) add(outside_, {"embedding.norm"}, dense.norm_bias);
  add(outside_, {"final_norm"}, dense.norm_bias);
  ModuleSet& layer = kinds_[0];
  add(layer, {"input_norm", "post_attention_norm"}, dense.norm_bias);
  add(layer, {"attention.query", "attention.key", "attention.value"}, dense.query_key_value_bias);
  if (dense.query_key_norm) add(layer, {"attention.query_norm", "attention.key_norm"}, dense.norm_bias);
  add(layer, {"attention.output", "mlp.up", "mlp.down"}, dense.linear_bias);
  if (dense.gate) add(layer, {"mlp.gate"}, dense.linear_bias);
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
  for (const auto& [layer, set] : layers) {
    modules.layers_.resize(layer + 1);
    const auto kind = std::ranges::find(modules.kinds_, set);
    modules.layers_[layer] = kind - modules.kinds_.begin();
    if (kind == modules.kinds_.end()) modules.kinds_.push_back(set);
  }
  if (modules.kinds_.empty()) modules.kinds_.emplace_back();
  if (modules.kinds_.size() == 1) modules.layers_.clear();
  return modules;
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
  if (layers_.empty()) return value(kinds_[0]);
  std::vector<double> of_kind(kinds_.size());
  std::ranges::transform(kinds_, of_kind.begin(), value);
  double sum = 0;
  for (const size_t kind : layers_) sum += of_kind[kind];
  return sum / static_cast<double>(layers_.size());
}

}  // namespace cairn
