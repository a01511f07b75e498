// ReadMegatronArgs() makes sizes and function of the arguments. Add() then finds the module of a name, and
// AddQkv() or AddStacked() turn a rank's slice into boxes of canonical parameters: fused matrices are taken
// apart, rows of padding are declared, and boxes move by the rank's place. AddBox() is the one place that
// makes parts: the first slice that comes with a box is read, and another with the same box is a replica.

#include "convert/formats/megatron/megatron_model.h"

#include <algorithm>

#include "convert/formats/megatron/megatron_function.h"
#include "convert/formats/megatron/megatron_modules.h"

namespace cairn {
namespace {

struct NameParts {
  const MegatronModule* module = nullptr;
  bool bias = false;
};

NameParts SplitName(std::string_view name) {
  const bool bias = name.ends_with("bias");
  if (!bias && !name.ends_with("weight")) return {};
  name.remove_suffix(bias ? 5 : 7);  // ".bias", or Transformer Engine's "_bias"
  return {FindMegatronModule(name), bias};
}

class ArgumentReader {
 public:
  ArgumentReader(const PyValue& args, const std::map<std::string, uint64_t>& shown)
      : args_(args), shown_(shown) {}

  int64_t Size(const char* name) {
    if (const int64_t value = Size(name, 0); value > 0) return value;
    if (status_.ok()) status_ = NotFound("the checkpoint's args have no {}", name);
    return 1;
  }
  int64_t Size(const char* name, int64_t otherwise) const {
    const auto value = AsInt(Find(args_, name));
    if (value && *value > 0 && *value < int64_t{1} << 40) return *value;
    const auto shown = shown_.find(name);
    return shown != shown_.end() && shown->second > 0 ? static_cast<int64_t>(shown->second) : otherwise;
  }
  bool Flag(const char* name, bool otherwise = false) const {
    return AsInt(Find(args_, name)).value_or(otherwise) != 0;
  }
  const Status& status() const { return status_; }

 private:
  const PyValue& args_;
  const std::map<std::string, uint64_t>& shown_;
  Status status_;
};

}  // namespace

struct MegatronAssembler::Target {
  const MegatronModule* module;
  bool bias;
  std::string prefix;  // of the canonical name: "layers.3."
};

Result<MegatronArgs> ReadMegatronArgs(const PyValue& args, double checkpoint_version, bool tied,
                                      ReaderOptions& options, const std::map<std::string, uint64_t>& shown) {
  ArgumentReader from(args, shown);
  MegatronArgs m;
  ModelShape& shape = m.shape;
  shape.layers = from.Size("num_layers");
  shape.hidden = from.Size("hidden_size");
  shape.heads = from.Size("num_attention_heads");
  shape.head_dim = from.Size("kv_channels", shape.hidden / shape.heads);
  shape.kv_heads = from.Flag("group_query_attention") ? from.Size("num_query_groups", shape.heads)
                                                      : from.Size("num_key_value_heads", shape.heads);
  const int64_t padded = from.Size("padded_vocab_size");
  shape.vocab_multiple = from.Size("make_vocab_size_divisible_by", 128);
  m.gate_last = Find(args, "glu_activation") && !Find(args, "glu_activation")->is(PyKind::kNone);
  shape.has.gate = m.gate_last || from.Flag("swiglu") || from.Flag("gated_linear_unit");
  m.qkv_version = checkpoint_version;
  CAIRN_RETURN_IF_ERROR(from.status());
  if (shape.heads % shape.kv_heads != 0)
    return InvalidArgument("{} query heads are not a multiple of {} groups", shape.heads, shape.kv_heads);
  if (from.Flag("apply_layernorm_1p"))
    return NotSupported("its norms hold weight - 1 (apply_layernorm_1p), which no other system does");
  if (from.Flag("multi_latent_attention") || from.Size("num_experts", 0) > 1)
    return NotSupported("multi-latent attention and mixtures of experts of Megatron cannot be read yet");
  shape.vocab = std::min(padded, from.Size("original_vocab_size", from.Size("vocab_size", padded)));
  m.vocab = static_cast<uint64_t>(shape.vocab);
  const int64_t ffn = from.Size("ffn_hidden_size", 4 * shape.hidden);
  m.facts = {{"num_layers", shape.layers},         {"hidden_size", shape.hidden},
             {"num_attention_heads", shape.heads}, {"ffn_hidden_size", ffn},
             {"vocab_size", shape.vocab},          {"tied_embeddings", tied}};
  if (const int64_t positions = from.Size("max_position_embeddings", from.Size("seq_length", 0));
      positions > 0)
    m.facts["max_position_embeddings"] = positions;
  if (shape.kv_heads != shape.heads) m.facts["num_key_value_heads"] = shape.kv_heads;
  if (shape.head_dim * shape.heads != shape.hidden) m.facts["head_dim"] = shape.head_dim;
  const auto allowed = [&](const std::string& name) { return IsAllowed(options, name); };
  ReadMegatronFunction(MegatronArgumentsOf(args), allowed, m.facts);
  if (m.facts.value("position_embedding", nlohmann::json()) == "rope") {
    m.facts["num_key_value_heads"] = shape.kv_heads;
    m.facts["head_dim"] = shape.head_dim;
  }
  return m;
}

Status NumberHasNoPlace(const std::string& name, Role role) {
  return NotSupported(
      "{} has a {} that is one number, which cannot be kept for Megatron's parameters: a fused one is "
      "several here",
      name, Name(role));
}

bool MegatronAssembler::Knows(std::string_view name) { return SplitName(name).module != nullptr; }

Status MegatronAssembler::Add(const MegatronSlice& slice) {
  const NameParts parts = SplitName(slice.name);
  if (!parts.module) return NotSupported("{} has no place in Megatron's GPT", slice.name);
  if (slice.shape.rank() == 0) return NumberHasNoPlace(slice.name, slice.role);
  Target target{parts.module, parts.bias, ""};
  if (slice.layer != kBeforeLayers && slice.layer != kAfterLayers)
    target.prefix = fmt::format("layers.{}.", slice.layer);
  if (parts.module->is_qkv()) return AddQkv(slice, target);
  return AddStacked(slice, target);
}

// A group of heads after the other: its query heads, its key, its value (since checkpoint version 2); before,
// all queries, keys and values of the rank (0), or the three of each element (1).
Status MegatronAssembler::AddQkv(const MegatronSlice& slice, const Target& target) {
  const uint64_t tp = static_cast<uint64_t>(tp_size_), rank = static_cast<uint64_t>(slice.tp);
  const auto heads = static_cast<uint64_t>(args_.shape.heads),
             d = static_cast<uint64_t>(args_.shape.head_dim);
  const auto groups = static_cast<uint64_t>(args_.shape.kv_heads);
  const uint64_t share = heads / groups, local = groups / tp;
  const Dims& shape = slice.shape;
  if (groups < tp)
    return NotSupported(
        "TP={} with {} key and value heads: each rank then has a copy of a head, which cannot be read; save "
        "it with a TP of at most {}",
        tp, groups, groups);
  if (groups % tp != 0 || slice.tensor.transposed || shape.rank() == 0 || shape[0] != local * (share + 2) * d)
    return Corrupt("{} of shape {} does not hold {} groups of {} + 2 heads of {}", slice.tensor.name,
                   ToString(shape), local, share, d);
  if (args_.qkv_version < 2 && share != 1)
    return NotSupported("grouped queries in checkpoint version 0 or 1");
  const uint32_t array = builder_.AddArray(slice.tensor);
  const auto rows = [&](uint64_t begin, uint64_t count) {
    Box box = Box::Whole(shape);
    box.offset[0] = begin;
    box.extent[0] = count;
    return box;
  };
  bool first = true;
  const auto add = [&](int which, uint64_t to, uint64_t from, uint64_t count) {
    Dims whole = shape;
    whole[0] = (which == 0 ? heads : groups) * d;
    const Status status = AddBox(slice, target, target.module->canonical[which], whole, rows(to, count),
                                 rows(from, count), array, first);
    first = false;
    return status;
  };
  for (int which = 0; which < 3; ++which) {
    const uint64_t begin = rank * local * d;
    if (args_.qkv_version < 1) {
      CAIRN_RETURN_IF_ERROR(add(which, begin, which * local * d, local * d));
    } else if (args_.qkv_version < 2) {
      for (uint64_t row = 0; row < local * d; ++row)
        CAIRN_RETURN_IF_ERROR(add(which, begin + row, row * 3 + which, 1));
    } else {
      for (uint64_t g = 0; g < local; ++g) {
        const uint64_t count = which == 0 ? share * d : d;
        CAIRN_RETURN_IF_ERROR(add(which, (rank * local + g) * count,
                                  g * (share + 2) * d + (which == 0 ? 0 : (share + which - 1) * d), count));
      }
    }
  }
  return OkStatus();
}

Status MegatronAssembler::AddStacked(const MegatronSlice& slice, const Target& target) {
  const MegatronModule& module = *target.module;
  const uint64_t tp = static_cast<uint64_t>(tp_size_), rank = static_cast<uint64_t>(slice.tp);
  const bool transposed = slice.tensor.transposed;
  Dims shape = slice.shape;
  if (transposed) return NotSupported("{} is stored transposed", slice.tensor.name);
  const uint32_t array = builder_.AddArray(slice.tensor);
  const int dim = CutDim(module.cut_as(), target.bias);
  if (dim >= shape.rank()) return Corrupt("{} has shape {}", slice.tensor.name, ToString(shape));
  Box in_slice = Box::Whole(shape), box = in_slice;
  if (module.is_gate_up() && args_.shape.has.gate) {
    const uint64_t half = shape[0] / 2;
    if (shape[0] % 2 != 0) return Corrupt("{} has no two halves", slice.tensor.name);
    shape[0] = half * tp;
    in_slice.extent[0] = box.extent[0] = half;
    box.offset[0] = rank * half;
    for (const bool second : {false, true}) {
      in_slice.offset[0] = second ? half : 0;
      const bool gate = second == args_.gate_last;
      CAIRN_RETURN_IF_ERROR(
          AddBox(slice, target, module.canonical[gate ? 0 : 1], shape, box, in_slice, array, !second));
    }
    return OkStatus();
  }
  if (dim != kReplicated) {
    box.offset[dim] = rank * shape[dim];
    shape[dim] *= tp;
  }
  if (module.is_vocabulary()) {
    if (shape[0] < args_.vocab)
      return Corrupt("{} has {} rows on {} ranks, the vocabulary {}", slice.tensor.name, slice.shape[0], tp,
                     args_.vocab);
    shape[0] = args_.vocab;
    if (box.offset[0] >= shape[0]) {
      builder_.account.Leave(Fate::kPadding, builder_.catalog, slice.tensor);
      return OkStatus();
    }
    box.extent[0] = in_slice.extent[0] = std::min(box.extent[0], shape[0] - box.offset[0]);
  }
  return AddBox(slice, target, module.canonical.back(), shape, box, in_slice, array, true);
}

// The first slice that comes with a box is read; others must be equal to it.
Status MegatronAssembler::AddBox(const MegatronSlice& slice, const Target& target, std::string_view canonical,
                                 const Dims& shape, const Box& box, const Box& in_slice, uint32_t array,
                                 bool first) {
  const CanonicalModule& module = *FindCanonicalModule(canonical);
  ParameterSpec spec{
      .name = fmt::format("{}{}.{}", target.prefix, canonical, target.bias ? "bias" : "weight"),
      .shape = shape,
      .tp_dim = CutDim(module, target.bias),
      .layer = slice.layer};
  if (spec.tp_dim != kReplicated && CutsHeads(module)) spec.tp_unit = SizeOf(Extent::kHead, args_.shape);
  if (module.out == Extent::kVocab) spec.pad_multiple = static_cast<uint64_t>(args_.shape.vocab_multiple);
  spec.tied_to_last = canonical == "embedding.word" && args_.facts.at("tied_embeddings") == true;
  CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, builder_.Tensor(spec, slice.role, slice.tensor.dtype));
  const auto common = Intersect(in_slice, slice.box);
  if (!common) {
    // A chunk with rows of padding alone; of a gated MLP, what the other half reads.
    if (module.out == Extent::kVocab) builder_.account.Leave(Fate::kPadding, builder_.catalog, slice.tensor);
    return OkStatus();
  }
  Box target_box = *common, in_array = *common;
  for (int i = 0; i < common->rank(); ++i) {
    target_box.offset[i] = box.offset[i] + common->offset[i] - in_slice.offset[i];
    in_array.offset[i] -= slice.box.offset[i];
  }
  builder_.AddSlice({{target_box, in_array}, tensor, array}, first);
  return OkStatus();
}

}  // namespace cairn
