#include "ckpt/model/canonical_modules.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ckpt/base/parse_number.h"

namespace cairn {
namespace {

using E = ModelSizes;

// The elements of a head in an extent whose cuts fall between heads; else 1.
int64_t HeadSize(ModelSize extent, const ModelShape& shape) {
  if (extent == E::Query || extent == E::KeyValue) return shape.HeadDim();
  if (extent == E::Values) return shape.ValueHeadDim();
  if (extent == E::DeltaKeys) return shape.delta_key_dim;
  if (extent == E::DeltaValues) return shape.delta_value_dim;
  return extent == E::KeyValueUp ? shape.KeyValueUpDim() : 1;
}

}  // namespace

std::span<const CanonicalModule> CanonicalModules() {
  static const std::vector<Cut> none, rows{{Axis::kTp, 0}}, columns{{Axis::kTp, 1}};
  static const std::vector<Cut> expert_rows{{Axis::kEp, 0}, {Axis::kEtp, 1}},
      expert_columns{{Axis::kEp, 0}, {Axis::kEtp, 2}};
  constexpr bool kFused = true, kKeepsType = true;
  static const CanonicalModule kModules[] = {
      {"embedding.word", {E::Vocab, E::Hidden}, rows, kBeforeLayers},
      {"embedding.position", {E::Positions, E::Hidden}, none, kBeforeLayers},
      {"embedding.position_offset", {E::PositionOffset, E::Hidden}, none, kBeforeLayers},
      {"embedding.norm", {E::Hidden}, none, kBeforeLayers},
      {"input_norm", {E::Hidden}},
      {"attention.query", {E::Query, E::Hidden}, rows},
      {"attention.key", {E::KeyValue, E::Hidden}, rows, 0, kFused},
      {"attention.value", {E::KeyValue, E::Hidden}, rows, 0, kFused},
      {"attention.gate", {E::Query, E::Hidden}, rows},
      {"attention.query_norm", {E::Head}},
      {"attention.key_norm", {E::Head}},
      {"attention.all_queries_norm", {E::Query}, rows},
      {"attention.all_keys_norm", {E::KeyValue}, rows},
      {"attention.query_down", {E::QueryRank, E::Hidden}},
      {"attention.query_down_norm", {E::QueryRank}},
      {"attention.query_up", {E::Query, E::QueryRank}, rows},
      {"attention.key_value_down", {E::KeyValueDown, E::Hidden}},
      {"attention.key_value_down_norm", {E::KeyValueRank}},
      {"attention.key_value_up", {E::KeyValueUp, E::KeyValueRank}, rows},
      {"attention.sinks", {E::Heads}, rows},
      {"attention.output", {E::Hidden, E::Values}, columns},
      {"attention.output_norm", {E::Hidden}},
      {"delta_net.query", {E::DeltaKeys, E::Hidden}, rows},
      {"delta_net.key", {E::DeltaKeys, E::Hidden}, rows},
      {"delta_net.value", {E::DeltaValues, E::Hidden}, rows},
      {"delta_net.gate", {E::DeltaValues, E::Hidden}, rows},
      {"delta_net.beta", {E::DeltaHeads, E::Hidden}, rows},
      {"delta_net.decay", {E::DeltaHeads, E::Hidden}, rows},
      {"delta_net.query_convolution", {E::DeltaKeys, E::One, E::Convolution}, rows},
      {"delta_net.key_convolution", {E::DeltaKeys, E::One, E::Convolution}, rows},
      {"delta_net.value_convolution", {E::DeltaValues, E::One, E::Convolution}, rows},
      {"delta_net.decay_bias", {E::DeltaHeads}, rows},
      {"delta_net.decay_scale", {E::DeltaHeads}, rows},
      {"delta_net.norm", {E::DeltaHead}},
      {"delta_net.output", {E::Hidden, E::DeltaValues}, columns},
      {"post_attention_norm", {E::Hidden}},
      {"mlp.gate", {E::Ffn, E::Hidden}, rows},
      {"mlp.up", {E::Ffn, E::Hidden}, rows, 0, kFused},
      {"mlp.down", {E::Hidden, E::Ffn}, columns},
      {"mlp.router", {E::Experts, E::Hidden}},
      {"mlp.router_correction", {E::Experts}, none, 0, /*fused=*/false, kKeepsType},
      {"mlp.experts.gate", {E::Experts, E::ExpertFfn, E::Hidden}, expert_rows},
      {"mlp.experts.up", {E::Experts, E::ExpertFfn, E::Hidden}, expert_rows},
      {"mlp.experts.down", {E::Experts, E::Hidden, E::ExpertFfn}, expert_columns},
      {"mlp.shared.gate", {E::SharedFfn, E::Hidden}, rows},
      {"mlp.shared.up", {E::SharedFfn, E::Hidden}, rows, 0, kFused},
      {"mlp.shared.down", {E::Hidden, E::SharedFfn}, columns},
      {"mlp.shared_gate", {E::One, E::Hidden}},
      {"mlp.output_norm", {E::Hidden}},
      {"embedding_norm", {E::Hidden}},
      {"hidden_norm", {E::Hidden}},
      {"projection", {E::Hidden, E::TwoHidden}, rows},
      {"prediction_norm", {E::Hidden}},
      {"final_norm", {E::Hidden}, none, kAfterLayers},
      {"output", {E::Vocab, E::Hidden}, rows, kAfterLayers},
  };
  static_assert(std::size(kModules) <= ModuleSet::kMaxModules, "a ModuleSet has a bit for each");
  return kModules;
}

const CanonicalModule* FindCanonicalModule(std::string_view name) {
  const auto modules = CanonicalModules();
  const auto found = std::ranges::find(modules, name, &CanonicalModule::name);
  return found == modules.end() ? nullptr : &*found;
}

std::string_view TakeLayer(std::string_view& name, uint64_t& number) {
  for (const std::string_view begin : {kInLayers, kInMtp}) {
    if (!name.starts_with(begin)) continue;
    std::string_view rest = name.substr(begin.size());
    const auto layer = TakeNumber<uint64_t>(rest);
    if (!layer || std::cmp_greater_equal(*layer, kMaxLayers) || !rest.starts_with('.')) return {};
    number = *layer;
    name = rest.substr(1);
    return begin;
  }
  return {};
}

const CanonicalModule* ModuleOfParameter(std::string_view name) {
  uint64_t layer = 0;
  TakeLayer(name, layer);
  for (const std::string_view ending : {".weight", ".bias"})
    if (name.ends_with(ending)) return FindCanonicalModule(name.substr(0, name.size() - ending.size()));
  return nullptr;
}

ParameterSpec SpecOf(const CanonicalModule& module, bool bias, int layer, const ModelShape& shape) {
  const bool mtp = module.place == 0 && shape.IsMtp(layer);
  ParameterSpec spec{.name = fmt::format("{}.{}", module.name, bias ? "bias" : "weight"),
                     .layer = mtp                 ? kAfterLayers
                              : module.place == 0 ? layer
                                                  : module.place};
  if (module.place == 0)
    spec.name =
        fmt::format("{}{}.{}", mtp ? kInMtp : kInLayers, mtp ? layer - shape.layers : layer, spec.name);
  spec.tied_to_last = shape.tied && module.name == "embedding.word";
  spec.of_experts = module.of_experts();
  const size_t rank = module.extents.size() - (bias && module.extents.size() > 1 ? 1 : 0);
  for (size_t dim = 0; dim < rank; ++dim)
    spec.shape.push_back(static_cast<uint64_t>(module.extents[dim](shape)));
  for (Cut cut : module.cuts) {
    if (cut.dim >= spec.shape.rank()) continue;
    const ModelSize extent = module.extents[cut.dim];
    cut.unit = static_cast<uint64_t>(HeadSize(extent, shape));
    if (extent == E::Vocab) cut.pad = static_cast<uint64_t>(shape.vocab_multiple);
    spec.cuts.push_back(cut);
  }
  return spec;
}

std::vector<int> PartsOf(const ModelShape& shape) {
  std::vector<int> parts(shape.AllLayers() + 2);
  std::iota(parts.begin(), parts.end(), kBeforeLayers);
  const auto after = parts.begin() + 1 + shape.layers;
  std::iota(after + 1, parts.end(), static_cast<int>(shape.layers));
  *after = kAfterLayers;
  return parts;
}

ModuleSet ModulesOf(const ModelShape& shape, int part) {
  if (!IsInLayers(part)) return shape.modules.outside();
  const auto layer = static_cast<uint64_t>(part), layers = static_cast<uint64_t>(shape.layers);
  return layer < layers ? shape.modules.layer(layer) : shape.modules.mtp(layer - layers);
}

std::vector<ParameterSpec> GptSpecs(const ModelShape& shape) {
  std::vector<ParameterSpec> specs;
  const auto modules = CanonicalModules();
  for (const int part : PartsOf(shape)) {
    ModuleSet set = ModulesOf(shape, part);
    if (part == kAfterLayers && !shape.tied) set.Add(*FindCanonicalModule("output"), /*bias=*/false);
    for (auto first = modules.begin(), last = first; first != modules.end(); first = last) {
      last = std::find_if_not(first + 1, modules.end(), [](const auto& module) { return module.fused; });
      for (const bool bias : {false, true})
        for (auto module = first; module != last && first->place == PlaceOf(part); ++module)
          if (set.Has(*module, bias)) specs.push_back(SpecOf(*module, bias, part, shape));
    }
  }
  return specs;
}

}  // namespace cairn
