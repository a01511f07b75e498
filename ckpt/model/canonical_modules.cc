#include "ckpt/model/canonical_modules.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr int64_t kOffsetRows = 2;  // rows before OPT's first position

// True if a cut through this extent falls between heads.
bool HasHeads(Extent extent) { return extent == Extent::kQuery || extent == Extent::kKeyValue; }

std::vector<CanonicalModule> MakeModules() {
  using enum Extent;
  const std::vector<Cut> none, rows{{Axis::kTp, 0}}, columns{{Axis::kTp, 1}};
  constexpr bool kFused = true;
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
      {"attention.output", {kHidden, kQuery}, columns},
      {"attention.output_norm", {kHidden}},
      {"post_attention_norm", {kHidden}},
      {"mlp.gate", {kFfn, kHidden}, rows},
      {"mlp.up", {kFfn, kHidden}, rows, 0, kFused},
      {"mlp.down", {kHidden, kFfn}, columns},
      {"mlp.output_norm", {kHidden}},
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

uint64_t SizeOf(Extent extent, const ModelShape& shape) {
  const auto size = [&]() -> int64_t {
    switch (extent) {
      case Extent::kHidden:
        return shape.hidden;
      case Extent::kQuery:
        return shape.QueryWidth();
      case Extent::kKeyValue:
        return shape.KeyValueWidth();
      case Extent::kHead:
        return shape.HeadDim();
      case Extent::kFfn:
        return shape.Ffn();
      case Extent::kVocab:
        return shape.vocab;
      case Extent::kPositions:
        return shape.Positions();
      case Extent::kPositionOffset:
        return kOffsetRows;
    }
    return 0;
  };
  return static_cast<uint64_t>(size());
}

ParameterSpec SpecOf(const CanonicalModule& module, bool bias, int layer, const ModelShape& shape) {
  ParameterSpec spec{.name = fmt::format("{}.{}", module.name, bias ? "bias" : "weight"),
                     .layer = module.place == 0 ? layer : module.place};
  if (module.place == 0) spec.name = fmt::format("layers.{}.{}", layer, spec.name);
  spec.tied_to_last = shape.tied && module.name == "embedding.word";
  const size_t rank = module.extents.size() - (bias && module.extents.size() > 1 ? 1 : 0);
  for (size_t dim = 0; dim < rank; ++dim) spec.shape.push_back(SizeOf(module.extents[dim], shape));
  for (Cut cut : module.cuts) {
    if (cut.dim >= spec.shape.rank()) continue;
    const Extent extent = module.extents[cut.dim];
    if (HasHeads(extent)) cut.unit = SizeOf(Extent::kHead, shape);
    if (extent == Extent::kVocab) cut.pad = static_cast<uint64_t>(shape.vocab_multiple);
    spec.cuts.push_back(cut);
  }
  return spec;
}

}  // namespace cairn
