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

// A row of the table, and what it says beyond the name that all programs have.
struct Row : MegatronModule {
  Row(int order, std::string_view own, std::vector<std::string_view> of) {
    name = core = own;
    canonical = std::move(of);
    core_order = order;
  }
  Row& Core(std::string_view own) { return core = own, *this; }
  Row& Fused(std::string_view own) { return fused = own, *this; }
  Row& Older(std::string_view own) { return older = own, *this; }
  Row& Weight(std::string_view end) { return weight = end, *this; }
  Row& Linear() { return linear = true, *this; }
  Row& Mtp() { return of_mtp = true, *this; }
};

}  // namespace

std::span<const MegatronModule> MegatronModules() {
  static const std::vector<MegatronModule> kModules = {
      Row(0, "word_embeddings", {"embedding.word"}).Core("embedding.word_embeddings"),
      Row(1, "position_embeddings", {"embedding.position"}).Core("embedding.position_embeddings"),
      Row(-1, "word_embeddings.norm", {"embedding.norm"}).Core(""),
      Row(1, "input_layernorm", {"input_norm"})
          .Fused("self_attention.linear_qkv.layer_norm")
          .Older("input_norm"),
      Row(2, "self_attention.query_key_value", {"attention.query", "attention.key", "attention.value"})
          .Core("self_attention.linear_qkv")
          .Older("attention.query_key_value")
          .Linear(),
      Row(3, "self_attention.q_layernorm", {"attention.query_norm"}),
      Row(4, "self_attention.k_layernorm", {"attention.key_norm"}),
      Row(1, "self_attention.linear_q_proj", {"attention.query"}).Linear(),
      Row(1, "self_attention.linear_q_down_proj", {"attention.query_down"}).Linear(),
      Row(2, "self_attention.linear_q_up_proj.layer_norm", {"attention.query_down_norm"})
          .Core("self_attention.q_layernorm")
          .Fused("self_attention.linear_q_up_proj.layer_norm"),
      Row(2, "self_attention.linear_q_up_proj", {"attention.query_up"}).Linear(),
      Row(3, "self_attention.linear_kv_down_proj", {"attention.key_value_down"}).Linear(),
      Row(4, "self_attention.linear_kv_up_proj.layer_norm", {"attention.key_value_down_norm"})
          .Core("self_attention.kv_layernorm")
          .Fused("self_attention.linear_kv_up_proj.layer_norm"),
      Row(4, "self_attention.linear_kv_up_proj", {"attention.key_value_up"}).Linear(),
      Row(-1, "self_attention.core_attention.softmax", {"attention.sinks"})
          .Core("")
          .Fused("self_attention.core_attention.softmax")
          .Weight("offset"),
      Row(0, "self_attention.dense", {"attention.output"})
          .Core("self_attention.linear_proj")
          .Older("attention.dense")
          .Linear(),
      Row(5, "post_attention_layernorm", {"post_attention_norm"})
          .Core("pre_mlp_layernorm")
          .Fused("mlp.linear_fc1.layer_norm")
          .Older("post_attention_norm"),
      Row(6, "mlp.dense_h_to_4h", {"mlp.gate", "mlp.up"}).Core("mlp.linear_fc1").Linear(),
      Row(7, "mlp.dense_4h_to_h", {"mlp.down"}).Core("mlp.linear_fc2").Linear(),
      Row(6, "mlp.router", {"mlp.router"}),
      Row(-1, "mlp.router.expert", {"mlp.router_correction"})
          .Core("")
          .Fused("mlp.router.expert")
          .Weight("bias"),
      Row(8, "mlp.experts.experts.linear_fc1", {"mlp.experts.gate", "mlp.experts.up"}).Linear(),
      Row(8, "mlp.experts.experts.linear_fc2", {"mlp.experts.down"}).Linear(),
      Row(11, "mlp.shared_experts.linear_fc1", {"mlp.shared.gate", "mlp.shared.up"}).Linear(),
      Row(12, "mlp.shared_experts.linear_fc2", {"mlp.shared.down"}).Linear(),
      Row(10, "mlp.shared_experts.gate", {"mlp.shared_gate"}).Core("").Fused("mlp.shared_experts.gate"),
      Row(2, "final_layernorm", {"final_norm"}).Core("decoder.final_layernorm").Older("final_norm"),
      Row(3, "output_layer", {"output"}).Older("lm_head").Linear(),
      Row(-2, "enorm", {"embedding_norm"}).Mtp(),
      Row(-2, "hnorm", {"hidden_norm"}).Mtp(),
      Row(-2, "eh_proj", {"projection"}).Linear().Mtp(),
      Row(13, "mtp_final_layernorm", {"prediction_norm"}).Core("final_layernorm").Mtp(),
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
  const MegatronModule* module = FindModule(stored.substr(0, end), latent);
  if (module && kind == module->weight) return {module};
  return kind == "bias" || kind == "weight" ? MegatronParameter{module, module != nullptr}
                                            : MegatronParameter{};
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
