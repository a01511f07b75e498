// A slice holds its parameters in one of three ways. Query, key and value go group by group: the query heads
// of the group, its key, its value (since checkpoint version 2); before, they were all queries, keys and
// values of the rank (0), or the three of each element (1). Gate and up are two halves, each cut by itself.
// Any other module is one parameter, cut in rows or columns, and the rows of a vocabulary are padded.

#include "convert/formats/megatron/megatron_modules.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// Names of other programs and versions: Megatron-LM v1 to v2 and the legacy models after, and Megatron-Core
// with Transformer Engine's fused norms or without.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"input_norm", "input_layernorm"},
    {"self_attention.linear_qkv.layer_norm", "input_layernorm"},
    {"attention.query_key_value", "self_attention.query_key_value"},
    {"self_attention.linear_qkv", "self_attention.query_key_value"},
    {"attention.dense", "self_attention.dense"},
    {"self_attention.linear_proj", "self_attention.dense"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"pre_mlp_layernorm", "post_attention_layernorm"},
    {"mlp.linear_fc1.layer_norm", "post_attention_layernorm"},
    {"mlp.linear_fc1", "mlp.dense_h_to_4h"},
    {"mlp.linear_fc2", "mlp.dense_4h_to_h"},
    {"final_norm", "final_layernorm"},
    {"lm_head", "output_layer"},
};

const MegatronModule* FindModule(std::string_view stored) {
  const auto other = std::ranges::find(kOtherNames, stored, [](const auto& names) { return names.first; });
  if (other != std::end(kOtherNames)) stored = other->second;
  const auto modules = MegatronModules();
  const auto found = std::ranges::find(modules, stored, &MegatronModule::name);
  return found == modules.end() ? nullptr : &*found;
}

Box Rows(const Dims& shape, uint64_t begin, uint64_t count) {
  Box box = Box::Whole(shape);
  box.offset[0] = begin;
  box.extent[0] = count;
  return box;
}

Result<std::vector<SlicePart>> QkvParts(std::string_view name, const Dims& slice, const MegatronCut& cut,
                                        uint64_t rank) {
  const auto heads = static_cast<uint64_t>(cut.shape.heads), d = static_cast<uint64_t>(cut.shape.HeadDim());
  const auto groups = static_cast<uint64_t>(cut.shape.KvHeads());
  const uint64_t share = heads / groups, local = groups / cut.tp;
  if (groups < cut.tp)
    return NotSupported(
        "TP={} with {} key and value heads: each rank then has a copy of a head, which cannot be read; save "
        "it with a TP of at most {}",
        cut.tp, groups, groups);
  if (groups % cut.tp != 0 || slice[0] != local * (share + 2) * d)
    return Corrupt("{} of shape {} does not hold {} groups of {} + 2 heads of {}", name, ToString(slice),
                   local, share, d);
  if (cut.qkv_version < 2 && share != 1) return NotSupported("grouped queries in checkpoint version 0 or 1");
  std::vector<SlicePart> parts;
  // `which` of query, key and value: `count` rows from `begin` on of the rank's, at row `at` of the slice.
  const auto add = [&](size_t which, uint64_t begin, uint64_t count, uint64_t at) {
    const uint64_t rows = (which == 0 ? share : 1) * d;  // of a group
    Dims whole = slice;
    whole[0] = rows * groups;
    parts.push_back(
        {{Rows(whole, rank * local * rows + begin, count), Rows(slice, at, count)}, which, whole});
  };
  if (cut.qkv_version < 1) {
    for (size_t which = 0; which < 3; ++which) add(which, 0, local * d, which * local * d);
  } else if (cut.qkv_version < 2) {
    for (size_t which = 0; which < 3; ++which)
      for (uint64_t row = 0; row < local * d; ++row) add(which, row, 1, row * 3 + which);
  } else {
    for (uint64_t group = 0; group < local; ++group) {
      const uint64_t at = group * (share + 2) * d;
      add(0, group * share * d, share * d, at);
      add(1, group * d, d, at + share * d);
      add(2, group * d, d, at + (share + 1) * d);
    }
  }
  return parts;
}

Result<std::vector<SlicePart>> GatedParts(std::string_view name, const Dims& slice, const MegatronCut& cut,
                                          uint64_t rank) {
  if (slice[0] % 2 != 0) return Corrupt("{} has no two halves", name);
  const uint64_t half = slice[0] / 2;
  Dims whole = slice;
  whole[0] = half * cut.tp;
  const Box box = Rows(whole, rank * half, half);
  return std::vector<SlicePart>{{{box, Rows(slice, 0, half)}, size_t{cut.gate_last}, whole},
                                {{box, Rows(slice, half, half)}, size_t{!cut.gate_last}, whole}};
}

}  // namespace

std::span<const MegatronModule> MegatronModules() {
  using enum MegatronPlace;
  static const std::vector<MegatronModule> kModules = {
      {"word_embeddings", kBeforeLayers, {"embedding.word"}},
      {"position_embeddings", kBeforeLayers, {"embedding.position"}},
      {"word_embeddings.norm", kBeforeLayers, {"embedding.norm"}},
      {"input_layernorm", kInLayer, {"input_norm"}},
      {"self_attention.query_key_value", kInLayer, {"attention.query", "attention.key", "attention.value"}},
      {"self_attention.q_layernorm", kInLayer, {"attention.query_norm"}},
      {"self_attention.k_layernorm", kInLayer, {"attention.key_norm"}},
      {"self_attention.dense", kInLayer, {"attention.output"}},
      {"post_attention_layernorm", kInLayer, {"post_attention_norm"}},
      {"mlp.dense_h_to_4h", kInLayer, {"mlp.gate", "mlp.up"}},
      {"mlp.dense_4h_to_h", kInLayer, {"mlp.down"}},
      {"final_layernorm", kAfterLayers, {"final_norm"}},
      {"output_layer", kAfterLayers, {"output"}},
  };
  return kModules;
}

std::string CanonicalName(std::string_view canonical, bool bias, int layer) {
  return fmt::format("{}{}.{}", IsInLayers(layer) ? fmt::format("layers.{}.", layer) : "", canonical,
                     bias ? "bias" : "weight");
}

MegatronParameter FindMegatronParameter(std::string_view stored) {
  const bool bias = stored.ends_with("bias");
  if (!bias && !stored.ends_with("weight")) return {};
  stored.remove_suffix(bias ? 5 : 7);  // ".bias", or Transformer Engine's "_bias"
  return {FindModule(stored), bias};
}

Result<std::vector<SlicePart>> PartsOfSlice(std::string_view name, const MegatronParameter& parameter,
                                            const Dims& slice, const MegatronCut& cut, uint64_t rank) {
  const MegatronModule& module = *parameter.module;
  const int dim = CutDim(module.cut_as(), parameter.bias);
  if (dim >= slice.rank()) return Corrupt("{} has shape {}", name, ToString(slice));
  if (module.is_qkv()) return QkvParts(name, slice, cut, rank);
  if (module.is_gate_up() && cut.shape.has.gate) return GatedParts(name, slice, cut, rank);
  SlicePart part{{Box::Whole(slice), Box::Whole(slice)}, module.canonical.size() - 1, slice};
  if (dim != kReplicated) {
    part.box.offset[dim] = rank * slice[dim];
    part.whole[dim] *= cut.tp;
  }
  if (module.is_vocabulary()) {
    const auto vocab = static_cast<uint64_t>(cut.shape.vocab);
    if (part.whole[0] < vocab)
      return Corrupt("{} has {} rows on {} ranks, the vocabulary {}", name, slice[0], cut.tp, vocab);
    part.whole[0] = vocab;
    part.box.offset[0] = std::min(part.box.offset[0], vocab);
    part.box.extent[0] = part.in_array.extent[0] = std::min(slice[0], vocab - part.box.offset[0]);
  }
  return std::vector<SlicePart>{std::move(part)};
}

}  // namespace cairn
