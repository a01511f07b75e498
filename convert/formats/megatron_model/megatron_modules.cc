// A slice holds its parameters in one of three ways. Query, key and value go group by group: the query heads
// of the group, its key, its value (since checkpoint version 2); before, they were all queries, keys and
// values of the rank (0), or the three of each element (1). Gate and up are two halves, each cut by itself.
// The experts of a layer are one stack of such halves.
// Any other module is one parameter, cut in rows or columns, and the rows of a vocabulary are padded.

#include "convert/formats/megatron_model/megatron_modules.h"

#include <algorithm>

namespace cairn {
namespace {

const MegatronModule* FindModule(std::string_view stored, bool latent) {
  const auto modules = MegatronModules();
  const auto found = std::ranges::find_if(modules, [&](const MegatronModule& module) {
    if (latent && module.canonical[0] == "attention.query_norm") return false;
    return stored == module.name ||
           (!stored.empty() && (stored == module.core || stored == module.fused || stored == module.older));
  });
  return found == modules.end() ? nullptr : &*found;
}

Box Rows(const Dims& shape, uint64_t begin, uint64_t count, int dim = 0) {
  Box box = Box::Whole(shape);
  box.offset[dim] = begin;
  box.extent[dim] = count;
  return box;
}

// The whole parameter of which a rank has a slice of this shape, and the slice's box.
struct HeldBox {
  Dims whole;
  Box box;
};
Result<HeldBox> HeldBoxOf(std::string_view name, const MegatronParameter& parameter, size_t canonical,
                          const Dims& slice, const MegatronShape& shape, const Topology& topology, int rank) {
  const CanonicalModule& module = *FindCanonicalModule(parameter.module->canonical[canonical]);
  ParameterSpec whole = SpecOf(module, parameter.bias, kBeforeLayers, shape);
  for (const Cut& cut : whole.cuts)
    if (cut.dim >= slice.rank()) return Corrupt("{} has shape {}", name, ToString(slice));
  const Dims stated = whole.shape;
  // Megatron-Core's own layers cut the down projections of latent attention in rows, others do not.
  if (whole.cuts.empty() && slice.rank() == 2 && slice != stated &&
      slice[0] * static_cast<uint64_t>(topology.tp) == stated[0])
    whole.cuts = {{Axis::kTp, 0}};
  whole = WholeOf(std::move(whole), slice, topology);
  if (whole.of_experts && std::cmp_not_equal(whole.shape[0], shape.experts))
    return Corrupt(
        "{} holds {} of {} experts; a file of one expert parallel rank must be read with those of the "
        "others",
        name, whole.shape[0], shape.experts);
  // Megatron-LM#1836 saved the slices of one tensor parallel rank as if they were all.
  if (whole.of_experts && whole.shape != stated)
    return Corrupt("{}: its experts together have shape {}, and the checkpoint's args make it {}", name,
                   ToString(whole.shape), ToString(stated));
  CAIRN_ASSIGN_OR_RETURN(const Slice held, SliceOf(whole, topology, rank));
  return HeldBox{whole.shape, held.box};
}

Result<std::vector<SlicePart>> QkvParts(std::string_view name, const MegatronParameter& parameter,
                                        const Dims& slice, const MegatronShape& shape,
                                        const Topology& topology, int rank) {
  const auto heads = static_cast<uint64_t>(shape.heads), d = static_cast<uint64_t>(shape.HeadDim());
  const auto groups = static_cast<uint64_t>(shape.KvHeads());
  const auto tp = static_cast<uint64_t>(topology.tp);
  const uint64_t share = heads / groups, local = groups / tp;
  if (groups < tp)
    return NotSupported(
        "TP={} with {} key and value heads: each rank then has a copy of a head, which cannot be read; save "
        "it with a TP of at most {}",
        tp, groups, groups);
  if (groups % tp != 0 || slice[0] != local * (share + 2) * d)
    return Corrupt("{} of shape {} does not hold {} groups of {} + 2 heads of {}", name, ToString(slice),
                   local, share, d);
  if (shape.dialect.qkv_version < 2 && share != 1)
    return NotSupported("grouped queries in checkpoint version 0 or 1");
  std::vector<HeldBox> held;
  for (size_t which = 0; which < 3; ++which) {
    const Dims own = Rows(slice, 0, local * (which == 0 ? share : 1) * d).extent;
    CAIRN_ASSIGN_OR_RETURN(held.emplace_back(),
                           HeldBoxOf(name, parameter, which, own, shape, topology, rank));
  }
  std::vector<SlicePart> parts;
  // `which` of query, key and value: `count` rows from `begin` on of the rank's, at row `at` of the slice.
  const auto add = [&](size_t which, uint64_t begin, uint64_t count, uint64_t at) {
    const auto& [whole, box] = held[which];
    parts.push_back({{Rows(whole, box.offset[0] + begin, count), Rows(slice, at, count)}, which, whole});
  };
  if (shape.dialect.qkv_version < 1) {
    for (size_t which = 0; which < 3; ++which) add(which, 0, local * d, which * local * d);
  } else if (shape.dialect.qkv_version < 2) {
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

Result<std::vector<SlicePart>> GatedParts(std::string_view name, const MegatronParameter& parameter,
                                          const Dims& slice, const MegatronShape& shape,
                                          const Topology& topology, int rank) {
  const int dim = parameter.module->gated_dim();
  if (slice.rank() <= dim || slice[dim] % 2 != 0) return Corrupt("{} has no two halves", name);
  const uint64_t half = slice[dim] / 2;
  const Box gate = Rows(slice, 0, half, dim), up = Rows(slice, half, half, dim);
  CAIRN_ASSIGN_OR_RETURN(const HeldBox held,
                         HeldBoxOf(name, parameter, 0, gate.extent, shape, topology, rank));
  return std::vector<SlicePart>{{{held.box, gate}, size_t{shape.dialect.gate_last}, held.whole},
                                {{held.box, up}, size_t{!shape.dialect.gate_last}, held.whole}};
}

// Modules that all programs call alike.
MegatronModule Plain(std::string_view name, std::vector<std::string_view> canonical, int core_order) {
  return {.name = name, .canonical = std::move(canonical), .core_order = core_order, .core = name};
}
MegatronModule Linear(std::string_view name, std::vector<std::string_view> canonical, int core_order) {
  MegatronModule module = Plain(name, std::move(canonical), core_order);
  module.linear = true;
  return module;
}

}  // namespace

std::span<const MegatronModule> MegatronModules() {
  static const std::vector<MegatronModule> kModules = {
      {.name = "word_embeddings",
       .canonical = {"embedding.word"},
       .core_order = 0,
       .core = "embedding.word_embeddings"},
      {.name = "position_embeddings",
       .canonical = {"embedding.position"},
       .core_order = 1,
       .core = "embedding.position_embeddings"},
      {.name = "word_embeddings.norm", .canonical = {"embedding.norm"}},
      {.name = "input_layernorm",
       .canonical = {"input_norm"},
       .core_order = 1,
       .core = "input_layernorm",
       .fused = "self_attention.linear_qkv.layer_norm",
       .older = "input_norm"},
      {.name = "self_attention.query_key_value",
       .canonical = {"attention.query", "attention.key", "attention.value"},
       .core_order = 2,
       .core = "self_attention.linear_qkv",
       .linear = true,
       .older = "attention.query_key_value"},
      Plain("self_attention.q_layernorm", {"attention.query_norm"}, 3),
      Plain("self_attention.k_layernorm", {"attention.key_norm"}, 4),
      Linear("self_attention.linear_q_proj", {"attention.query"}, 1),
      Linear("self_attention.linear_q_down_proj", {"attention.query_down"}, 1),
      {.name = "self_attention.linear_q_up_proj.layer_norm",
       .canonical = {"attention.query_down_norm"},
       .core_order = 2,
       .core = "self_attention.q_layernorm",
       .fused = "self_attention.linear_q_up_proj.layer_norm"},
      Linear("self_attention.linear_q_up_proj", {"attention.query_up"}, 2),
      Linear("self_attention.linear_kv_down_proj", {"attention.key_value_down"}, 3),
      {.name = "self_attention.linear_kv_up_proj.layer_norm",
       .canonical = {"attention.key_value_down_norm"},
       .core_order = 4,
       .core = "self_attention.kv_layernorm",
       .fused = "self_attention.linear_kv_up_proj.layer_norm"},
      Linear("self_attention.linear_kv_up_proj", {"attention.key_value_up"}, 4),
      {.name = "self_attention.dense",
       .canonical = {"attention.output"},
       .core_order = 0,
       .core = "self_attention.linear_proj",
       .linear = true,
       .older = "attention.dense"},
      {.name = "post_attention_layernorm",
       .canonical = {"post_attention_norm"},
       .core_order = 5,
       .core = "pre_mlp_layernorm",
       .fused = "mlp.linear_fc1.layer_norm",
       .older = "post_attention_norm"},
      {.name = "mlp.dense_h_to_4h",
       .canonical = {"mlp.gate", "mlp.up"},
       .core_order = 6,
       .core = "mlp.linear_fc1",
       .linear = true},
      {.name = "mlp.dense_4h_to_h",
       .canonical = {"mlp.down"},
       .core_order = 7,
       .core = "mlp.linear_fc2",
       .linear = true},
      Plain("mlp.router", {"mlp.router"}, 6),
      {.name = "mlp.router.expert",
       .canonical = {"mlp.router_correction"},
       .fused = "mlp.router.expert",
       .weight = "bias"},
      Linear("mlp.experts.experts.linear_fc1", {"mlp.experts.gate", "mlp.experts.up"}, 8),
      Linear("mlp.experts.experts.linear_fc2", {"mlp.experts.down"}, 8),
      Linear("mlp.shared_experts.linear_fc1", {"mlp.shared.gate", "mlp.shared.up"}, 11),
      Linear("mlp.shared_experts.linear_fc2", {"mlp.shared.down"}, 12),
      {.name = "mlp.shared_experts.gate",
       .canonical = {"mlp.shared_gate"},
       .core_order = 10,
       .fused = "mlp.shared_experts.gate"},
      {.name = "final_layernorm",
       .canonical = {"final_norm"},
       .core_order = 2,
       .core = "decoder.final_layernorm",
       .older = "final_norm"},
      {.name = "output_layer",
       .canonical = {"output"},
       .core_order = 3,
       .core = "output_layer",
       .linear = true,
       .older = "lm_head"},
      {.name = "enorm", .canonical = {"embedding_norm"}, .core_order = -2, .core = "enorm", .of_mtp = true},
      {.name = "hnorm", .canonical = {"hidden_norm"}, .core_order = -2, .core = "hnorm", .of_mtp = true},
      {.name = "eh_proj",
       .canonical = {"projection"},
       .core_order = -2,
       .core = "eh_proj",
       .linear = true,
       .of_mtp = true},
      {.name = "mtp_final_layernorm",
       .canonical = {"prediction_norm"},
       .core_order = 13,
       .core = "final_layernorm",
       .of_mtp = true},
  };
  return kModules;
}

std::string MegatronDialect::Name(const MegatronModule& module, MegatronLayer layer, bool bias) const {
  const std::string_view kind = bias ? "bias" : module.weight;
  if (program == MegatronProgram::kDeepSpeed) return fmt::format("{}.{}", module.name, kind);
  const bool own = local_spec && (latent || !distributed);
  const bool before_mixture =
      !local_spec && layer == MegatronLayer::kMixture && module.canonical[0] == "post_attention_norm";
  const bool apart = own || before_mixture || (latent && module.canonical[0] == "input_norm");
  return !module.core.empty() && (apart || module.fused.empty()) ? fmt::format("{}.{}", module.core, kind)
                                                                 : fmt::format("{}_{}", module.fused, kind);
}

Result<int> MegatronShape::LayerOf(const MegatronName& name, int first) const {
  if (!IsInLayers(name.layer)) return name.layer;
  if (!name.mtp) return (name.layer + first) / (dialect.half_layers ? 2 : 1);
  if (name.layer < mtp_layers) return static_cast<int>(layers) + name.layer;
  return Corrupt(
      "{} is of layer {} of multi-token prediction, of which the checkpoint's args state {} (mtp_num_layers)",
      name.name, name.layer, mtp_layers);
}

MegatronParameter FindMegatronParameter(std::string_view stored, bool latent) {
  const size_t end = stored.find_last_of("._");  // ".bias", or Transformer Engine's "_bias"
  if (end == stored.npos) return {};
  const std::string_view kind = stored.substr(end + 1);
  if (kind != "bias" && kind != "weight") return {};
  const MegatronModule* module = FindModule(stored.substr(0, end), latent);
  return {module, module && kind != module->weight};
}

Result<std::vector<SlicePart>> PartsOfSlice(std::string_view name, const MegatronParameter& parameter,
                                            const Dims& slice, const MegatronShape& shape,
                                            const Topology& topology, int rank) {
  const MegatronModule& module = *parameter.module;
  if (module.is_qkv()) return QkvParts(name, parameter, slice, shape, topology, rank);
  if (module.is_gate_up() && shape.IsGated())
    return GatedParts(name, parameter, slice, shape, topology, rank);
  const auto vocab = static_cast<uint64_t>(shape.vocab), tp = static_cast<uint64_t>(topology.tp);
  if (module.is_vocabulary() && slice[0] * tp < vocab)
    return Corrupt("{} has {} rows on {} ranks, the vocabulary {}", name, slice[0], tp, vocab);
  const size_t only = module.canonical.size() - 1;
  CAIRN_ASSIGN_OR_RETURN(const HeldBox held, HeldBoxOf(name, parameter, only, slice, shape, topology, rank));
  return std::vector<SlicePart>{{{held.box, Box::Whole(held.box.extent)}, only, held.whole}};
}

}  // namespace cairn
