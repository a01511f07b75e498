// Which modules of FORMAT.md's "Canonical names" a decoder has: one set for each kind of its layers, one for
// the modules outside the layers, and one for each layer of multi-token prediction.
//
// All layers of most models are of one kind. The output layer is in no set: ModelShape::tied says whether the
// model has one.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

namespace cairn {

struct CanonicalModule;

// The weights and biases of some modules. A name must be that of a canonical module: "mlp.gate".
class ModuleSet {
 public:
  bool Has(const CanonicalModule& module, bool bias) const;
  bool Has(std::string_view name) const;
  bool HasBias(std::string_view name) const;
  void Add(const CanonicalModule& module, bool bias);
  // Removes all modules whose names begin so.
  void RemoveAll(std::string_view begin);
  auto operator<=>(const ModuleSet&) const = default;

  static constexpr size_t kMaxModules = 128;

 private:
  using Bits = std::array<uint64_t, kMaxModules / 64>;  // a bit a module, in the order of CanonicalModules()
  Bits weights_ = {}, biases_ = {};
};

// The choices that decide on the modules of a dense decoder, as Megatron's flags name them. The defaults are
// GPT-2's.
struct DenseModules {
  bool positions = true;  // learned
  bool embedding_norm = false;
  bool norm_bias = true;  // of every norm
  bool query_key_value_bias = true;
  bool query_key_norm = false;
  bool sinks = false;
  bool linear_bias = true;  // of attention's output and of the MLP
  bool gate = false;        // mlp.gate in addition to mlp.up
};
// A gated MLP and, as in LLaMA, neither biases nor learned positions.
inline constexpr DenseModules kLlamaModules{.positions = false,
                                            .norm_bias = false,
                                            .query_key_value_bias = false,
                                            .linear_bias = false,
                                            .gate = true};

// What layers have in place of modules of a dense decoder, and in addition.
struct LayerChoices {
  uint64_t layers = 1;  // one is enough if all are alike
  // Latent attention in place of query, key and value.
  bool latent = false;
  bool query_down = false;  // queries have a latent vector, too
  bool latent_norms = true;
  // The layers that have experts in place of the MLP; null: none.
  std::function<bool(uint64_t layer)> is_mixture;
  bool expert_bias = false;  // of router and experts
  bool router_correction = false;
  bool shared_expert = false;
  bool shared_gate = false;
  uint64_t mtp_layers = 0;  // of multi-token prediction; each has a layer like the last one
};

class DecoderModules {
 public:
  // All layers are of one kind.
  DecoderModules(const DenseModules& dense = {});
  // By the canonical names of a model's parameters; those of layer 0 are enough if all layers are alike.
  // Other names count for nothing.
  static DecoderModules Among(const std::set<std::string_view>& names);
  // The same with other layers; requires the modules of a dense decoder.
  DecoderModules With(const LayerChoices& choices) const;

  const ModuleSet& outside() const { return outside_; }
  const ModuleSet& layer(uint64_t number) const {
    return kinds_[number < layers_.size() ? layers_[number] : 0];
  }
  // A layer of multi-token prediction, from 0.
  ModuleSet mtp(uint64_t number) const { return number < mtp_.size() ? mtp_[number] : ModuleSet(); }
  // In a layer of any kind, or outside the layers.
  bool Has(std::string_view name) const;
  bool HasBias(std::string_view name) const;
  // Calls `visit` with each kind of layer in [begin, end), and how many of these it has. Layers that are not
  // known are like the last one.
  void ForEachKind(uint64_t begin, uint64_t end,
                   const std::function<void(const ModuleSet&, double)>& visit) const;
  // The mean of `value` over the layers.
  double LayerMean(const std::function<double(const ModuleSet&)>& value) const;
  auto operator<=>(const DecoderModules&) const = default;

 private:
  // `layer` is the next one, or a later one.
  void SetLayer(uint64_t layer, const ModuleSet& set);

  ModuleSet outside_;
  std::vector<ModuleSet> kinds_;  // at least one
  std::vector<size_t> layers_;    // the kind of each layer; empty: all are of the first
  std::vector<ModuleSet> mtp_;    // of each layer of multi-token prediction
};

}  // namespace cairn
