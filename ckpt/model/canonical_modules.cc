#include "ckpt/model/canonical_modules.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr int64_t kPositionOffset = 2;  // rows before OPT's first position

constexpr CanonicalModule kCanonicalModules[] = {
    {"embedding.word", Extent::kVocab, Extent::kHidden, Cut::kRows},
    {"embedding.position", Extent::kPositions, Extent::kHidden},
    {"embedding.position_offset", Extent::kPositionOffset, Extent::kHidden},
    {"embedding.norm", Extent::kHidden, Extent::kNone},
    {"input_norm", Extent::kHidden, Extent::kNone},
    {"attention.query", Extent::kQuery, Extent::kHidden, Cut::kRows},
    {"attention.key", Extent::kKeyValue, Extent::kHidden, Cut::kRows},
    {"attention.value", Extent::kKeyValue, Extent::kHidden, Cut::kRows},
    {"attention.query_norm", Extent::kHead, Extent::kNone},
    {"attention.key_norm", Extent::kHead, Extent::kNone},
    {"attention.output", Extent::kHidden, Extent::kQuery, Cut::kColumns},
    {"attention.output_norm", Extent::kHidden, Extent::kNone},
    {"post_attention_norm", Extent::kHidden, Extent::kNone},
    {"mlp.gate", Extent::kFfn, Extent::kHidden, Cut::kRows},
    {"mlp.up", Extent::kFfn, Extent::kHidden, Cut::kRows},
    {"mlp.down", Extent::kHidden, Extent::kFfn, Cut::kColumns},
    {"mlp.output_norm", Extent::kHidden, Extent::kNone},
    {"final_norm", Extent::kHidden, Extent::kNone},
    {"output", Extent::kVocab, Extent::kHidden, Cut::kRows},
};

}  // namespace

const CanonicalModule* FindCanonicalModule(std::string_view name) {
  const auto found = std::ranges::find(kCanonicalModules, name, &CanonicalModule::name);
  return found == std::end(kCanonicalModules) ? nullptr : found;
}

uint64_t SizeOf(Extent extent, const ModelShape& shape) {
  const auto size = [&]() -> int64_t {
    switch (extent) {
      case Extent::kNone:
        return 1;
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
        return shape.positions;
      case Extent::kPositionOffset:
        return kPositionOffset;
    }
    return 0;
  };
  return static_cast<uint64_t>(size());
}

int CutDim(const CanonicalModule& module, bool bias) {
  if (module.cut == Cut::kRows) return 0;
  return module.cut == Cut::kColumns && !bias ? 1 : kReplicated;
}

bool CutsHeads(const CanonicalModule& module) {
  const Extent cut = module.cut == Cut::kColumns ? module.in : module.out;
  return module.cut != Cut::kNone && (cut == Extent::kQuery || cut == Extent::kKeyValue);
}

ParameterSpec SpecOf(const CanonicalModule& module, bool bias, int layer, const ModelShape& shape) {
  ParameterSpec spec{.name = fmt::format("{}.{}", module.name, bias ? "bias" : "weight"),
                     .shape = {SizeOf(module.out, shape)},
                     .tp_dim = CutDim(module, bias),
                     .layer = layer};
  if (layer >= 0 && layer != kAfterLayers) spec.name = fmt::format("layers.{}.{}", layer, spec.name);
  if (!bias && module.in != Extent::kNone) spec.shape.push_back(SizeOf(module.in, shape));
  if (spec.tp_dim != kReplicated && CutsHeads(module)) spec.tp_unit = SizeOf(Extent::kHead, shape);
  if (module.out == Extent::kVocab) spec.pad_multiple = static_cast<uint64_t>(shape.vocab_multiple);
  return spec;
}

}  // namespace cairn
