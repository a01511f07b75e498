#include "ckpt/model/canonical_modules.h"

#include <algorithm>
#include <utility>

#include "ckpt/base/parse_number.h"

namespace cairn {
namespace {

constexpr int64_t kOffsetRows = 2;  // rows before OPT's first position

// The elements of a head in an extent whose cuts fall between heads; else 1.
int64_t HeadSize(Extent extent, const ModelShape& shape) {
  if (extent == Extent::kQuery || extent == Extent::kKeyValue) return shape.HeadDim();
  if (extent == Extent::kValues) return shape.ValueHeadDim();
  return extent == Extent::kKeyValueUp ? shape.UnrotatedDim() + shape.ValueHeadDim() : 1;
}

std::vector<CanonicalModule> MakeModules() {
  using enum Extent;
  const std::vector<Cut> none, rows{{Axis::kTp, 0}}, columns{{Axis::kTp, 1}};
  const std::vector<Cut> expert_rows{{Axis::kEp, 0}, {Axis::kEtp, 1}},
      expert_columns{{Axis::kEp, 0}, {Axis::kEtp, 2}};
  constexpr bool kFused = true, kKeepsType = true;
  return {
      {"embedding.word", {kVocab, kHidden}, rows, kBeforeLayers},
      {"embedding.position", {kPositions, kHidden}, none, kBeforeLayers},
      {"embedding.position_offset", {kPositionOffset, kHidden}, none, kBeforeLayers},
      {"embedding.norm", {kHidden}, none, kBeforeLayers},
      {"input_norm", {kHidden}},
      {"attention.query", {kQuery, kHidden}, rows},
      {"attention.key", {kKeyValue, kHidden}, rows, 0, kFused},
      {"attention.value", {kKeyValue, kHidden}, rows, 0, kFused},
      {"attention.query_norm", {kHead}},
      {"attention.key_norm", {kHead}},
      {"attention.all_queries_norm", {kQuery}, rows},
      {"attention.all_keys_norm", {kKeyValue}, rows},
      {"attention.query_down", {kQueryRank, kHidden}},
      {"attention.query_down_norm", {kQueryRank}},
      {"attention.query_up", {kQuery, kQueryRank}, rows},
      {"attention.key_value_down", {kKeyValueDown, kHidden}},
      {"attention.key_value_down_norm", {kKeyValueRank}},
      {"attention.key_value_up", {kKeyValueUp, kKeyValueRank}, rows},
      {"attention.sinks", {kHeads}, rows},
      {"attention.output", {kHidden, kValues}, columns},
      {"attention.output_norm", {kHidden}},
      {"post_attention_norm", {kHidden}},
      {"mlp.gate", {kFfn, kHidden}, rows},
      {"mlp.up", {kFfn, kHidden}, rows, 0, kFused},
      {"mlp.down", {kHidden, kFfn}, columns},
      {"mlp.router", {kExperts, kHidden}},
      {"mlp.router_correction", {kExperts}, none, 0, /*fused=*/false, kKeepsType},
      {"mlp.experts.gate", {kExperts, kExpertFfn, kHidden}, expert_rows},
      {"mlp.experts.up", {kExperts, kExpertFfn, kHidden}, expert_rows},
      {"mlp.experts.down", {kExperts, kHidden, kExpertFfn}, expert_columns},
      {"mlp.shared.gate", {kSharedFfn, kHidden}, rows},
      {"mlp.shared.up", {kSharedFfn, kHidden}, rows, 0, kFused},
      {"mlp.shared.down", {kHidden, kSharedFfn}, columns},
      {"mlp.shared_gate", {kOne, kHidden}},
      {"mlp.output_norm", {kHidden}},
      {"embedding_norm", {kHidden}},
      {"hidden_norm", {kHidden}},
      {"projection", {kHidden, kTwoHidden}, rows},
      {"prediction_norm", {kHidden}},
      {"final_norm", {kHidden}, none, kAfterLayers},
      {"output", {kVocab, kHidden}, rows, kAfterLayers},
  };
}

}  // namespace

const std::vector<CanonicalModule>& CanonicalModules() {
  static const std::vector<CanonicalModule> kModules = MakeModules();
  return kModules;
}

const CanonicalModule* FindCanonicalModule(std::string_view name) {
  const auto& modules = CanonicalModules();
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

uint64_t SizeOf(Extent extent, const ModelShape& shape) {
  const auto size = [&]() -> int64_t {
    switch (extent) {
      case Extent::kHidden:
        return shape.hidden;
      case Extent::kTwoHidden:
        return 2 * shape.hidden;
      case Extent::kQuery:
        return shape.QueryWidth();
      case Extent::kKeyValue:
        return shape.KeyValueWidth();
      case Extent::kHead:
        return shape.HeadDim();
      case Extent::kHeads:
        return shape.heads;
      case Extent::kValues:
        return shape.heads * shape.ValueHeadDim();
      case Extent::kQueryRank:
        return shape.query_rank;
      case Extent::kKeyValueDown:
        return shape.key_value_rank + shape.rotated_dim;
      case Extent::kKeyValueRank:
        return shape.key_value_rank;
      case Extent::kKeyValueUp:
        return shape.heads * HeadSize(extent, shape);
      case Extent::kFfn:
        return shape.Ffn();
      case Extent::kVocab:
        return shape.vocab;
      case Extent::kPositions:
        return shape.Positions();
      case Extent::kPositionOffset:
        return kOffsetRows;
      case Extent::kExperts:
        return shape.experts;
      case Extent::kExpertFfn:
        return shape.expert_ffn;
      case Extent::kSharedFfn:
        return shape.shared_ffn;
      case Extent::kOne:
        return 1;
    }
    return 0;
  };
  return static_cast<uint64_t>(size());
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
  for (size_t dim = 0; dim < rank; ++dim) spec.shape.push_back(SizeOf(module.extents[dim], shape));
  for (Cut cut : module.cuts) {
    if (cut.dim >= spec.shape.rank()) continue;
    const Extent extent = module.extents[cut.dim];
    cut.unit = static_cast<uint64_t>(HeadSize(extent, shape));
    if (extent == Extent::kVocab) cut.pad = static_cast<uint64_t>(shape.vocab_multiple);
    spec.cuts.push_back(cut);
  }
  return spec;
}

}  // namespace cairn
