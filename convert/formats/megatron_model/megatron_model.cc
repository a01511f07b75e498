// ReadMegatronArgs() derives sizes and function from the arguments. Add() then finds the module of a name and
// the boxes of canonical parameters that a rank's slice of it holds (megatron_modules.h). AddBox() is the one
// place that makes parts: the first slice that comes with a box is read, and another with the same box is a
// replica.

#include "convert/formats/megatron_model/megatron_model.h"

#include <algorithm>

#include "ckpt/base/first_axis.h"
#include "ckpt/families/expand.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/megatron_model/megatron_function.h"
#include "convert/formats/megatron_model/megatron_state.h"

namespace cairn {
namespace {

using nlohmann::json;

// A size that an argument states; `otherwise` if it states none.
int64_t SizeIn(const json& args, const char* name, int64_t otherwise = 0) {
  const int64_t value = IntOf(Argument(args, name));
  return value > 0 && value < int64_t{1} << 40 ? value : otherwise;
}
bool IsOn(const json& args, const char* name) { return !IsUnset(Argument(args, name)); }

// True if all layers of a HybridModel are attention ("*") and MLP ("-") in turn; "|" is where a stage of the
// pipeline ends.
bool IsByTurns(const std::string& pattern, const json& count) {
  uint64_t layers = 0;
  for (const char layer : pattern)
    if (layer != '|' && layer != "*-"[layers++ % 2]) return false;
  return layers > 0 && layers % 2 == 0 && count == layers;
}

// True for the arguments of a HybridModel (Megatron-Core 0.19) that computes a GPT; those that say so are
// taken out. False for a GPTModel's. Errors: NotSupported for other layers.
Result<bool> TakeHalfLayers(json& args) {
  const auto get = [&](const char* name) { return args.value(name, json()); };
  json pattern = get("hybrid_layer_pattern");
  if (IsUnset(pattern)) pattern = get("hybrid_override_pattern");
  if (IsUnset(pattern)) return false;
  // These count the layers in which they act.
  const bool all_alike = IsUnset(get("no_rope_freq")) && IsUnset(get("window_attn_skip_freq"));
  if (!pattern.is_string() || !IsByTurns(pattern.get<std::string>(), get("num_layers")) || !all_alike)
    return NotSupported(
        "its layers are {} (hybrid_layer_pattern); only alternating attention and MLP, \"*-*-\", is a GPT; "
        "--from dcp reads the tensors of torch_dist under their own names",
        pattern.dump());
  for (const char* name : {"hybrid_layer_pattern", "hybrid_override_pattern", "is_hybrid_model"})
    args.erase(name);
  if (const json spec = get("spec"); spec.is_array() && spec.size() == 2 && spec[1] == "hybrid_stack_spec")
    args.erase("spec");
  return true;
}

// For a checkpoint without args: the model of `options.config`, whatever program trained it. Errors:
// NotSupported if there is none.
Result<MegatronShape> ReadShapeGiven(const ReaderOptions& options, Manifest& manifest) {
  if (options.config.empty())
    return NotSupported(
        "it has no args, which describe the model; --config FILE takes the config.json of the model for "
        "them");
  std::vector<std::string> history;
  CAIRN_ASSIGN_OR_RETURN(ConfigModel config, ReadConfigGiven(FileSystem::Posix(), options, history));
  std::ranges::move(history, std::back_inserter(manifest.history));
  manifest.model = std::move(config.model);
  CAIRN_ASSIGN_OR_RETURN(const ModelShape sizes, ReadShape(manifest.model));
  MegatronShape shape{sizes};
  CAIRN_ASSIGN_OR_RETURN(shape.modules, ModulesOf(*config.family, manifest.model));
  return shape;
}

// That of its args, which also state the topology.
Result<MegatronShape> ReadShapeOfArgs(const PyValue& args, double checkpoint_version, ReaderOptions& options,
                                      Manifest& manifest) {
  const auto size = [&](const char* name, const char* old = "") {
    const int64_t value = AsInt(Find(args, name)).value_or(AsInt(Find(args, old)).value_or(1));
    return static_cast<int>(std::clamp<int64_t>(value, 1, kMaxWorld));
  };
  manifest.topology = {size("tensor_model_parallel_size", "model_parallel_size"),
                       size("pipeline_model_parallel_size"), size("data_parallel_size"), 0};
  const bool tied = AsInt(Find(args, "untie_embeddings_and_output_weights")).value_or(0) == 0;
  CAIRN_ASSIGN_OR_RETURN(auto read, ReadMegatronArgs(args, checkpoint_version, tied, options));
  manifest.model = std::move(read.model);
  const MegatronShape& shape = read.shape;
  if (shape.experts > 0) {
    // Ranks that share a sequence hold the same weights, as data parallel ranks do.
    manifest.topology.dp *= std::min(size("context_parallel_size"), kMaxWorld / manifest.topology.world());
    manifest.topology.ep = size("expert_model_parallel_size");
    const int etp = size("expert_tensor_parallel_size", "tensor_model_parallel_size");
    manifest.topology.etp = etp == manifest.topology.tp ? 0 : etp;
    CAIRN_RETURN_IF_ERROR(Validate(manifest.topology).WithContext("its args"));
  }
  return shape;
}

// The sizes that `args` states.
Result<Model> ReadSizes(const json& args, bool half_layers) {
  for (const char* needed : {"num_layers", "hidden_size", "num_attention_heads", "padded_vocab_size"})
    if (SizeIn(args, needed) == 0) return NotFound("the checkpoint's args have no {}", needed);
  const int64_t hidden = SizeIn(args, "hidden_size"), heads = SizeIn(args, "num_attention_heads"),
                head_dim = SizeIn(args, "kv_channels", hidden / heads),
                groups = SizeIn(
                    args, IsOn(args, "group_query_attention") ? "num_query_groups" : "num_key_value_heads",
                    heads),
                padded = SizeIn(args, "padded_vocab_size"), ffn = SizeIn(args, "ffn_hidden_size", 4 * hidden);
  if (heads % groups != 0)
    return InvalidArgument("{} query heads are not a multiple of {} groups", heads, groups);
  Model model;
  model.num_layers = SizeIn(args, "num_layers") / (half_layers ? 2 : 1);
  model.hidden_size = hidden;
  model.num_attention_heads = heads;
  model.ffn_hidden_size = ffn;
  model.vocab_size =
      std::min(padded, SizeIn(args, "original_vocab_size", SizeIn(args, "vocab_size", padded)));
  if (groups != heads) model.num_key_value_heads = groups;
  if (head_dim * heads != hidden) model.head_dim = head_dim;
  if (const int64_t experts = SizeIn(args, "num_experts"); experts > 1) {
    model.num_experts = experts;
    model.moe_ffn_hidden_size = SizeIn(args, "moe_ffn_hidden_size", ffn);
    if (const int64_t shared = SizeIn(args, kSharedExpertSize); shared > 0)
      model.shared_expert_ffn_hidden_size = shared;
  }
  if (const int64_t positions = SizeIn(args, "max_position_embeddings", SizeIn(args, "seq_length"));
      positions > 0)
    model.max_position_embeddings = positions;
  return model;
}

}  // namespace

Result<MegatronArgs> ReadMegatronArgs(const PyValue& args, double checkpoint_version, bool tied,
                                      ReaderOptions& options, const std::map<std::string, uint64_t>& shown) {
  json arguments = MegatronArgumentsOf(args);
  CAIRN_ASSIGN_OR_RETURN(const bool half_layers, TakeHalfLayers(arguments));
  for (const auto& [name, size] : shown)
    if (SizeIn(arguments, name.c_str()) == 0) arguments[name] = size;
  CAIRN_ASSIGN_OR_RETURN(Model model, ReadSizes(arguments, half_layers));
  model.tied_embeddings = tied;
  const auto allowed = [&](const std::string& name) { return IsAllowed(options, name); };
  ReadMegatronFunction(arguments, allowed, model);
  CAIRN_ASSIGN_OR_RETURN(const ModelShape sizes, ReadShape(model));
  if (model.position_embedding == "rope" && model.kv_lora_rank.is_null()) {
    model.num_key_value_heads = sizes.kv_heads;
    model.head_dim = sizes.head_dim;
  }
  MegatronShape shape{sizes};
  shape.vocab_multiple = SizeIn(arguments, "make_vocab_size_divisible_by", 128);
  shape.dialect = {.gate_last = !Argument(arguments, "glu_activation").is_null(),
                   .qkv_version = checkpoint_version,
                   .half_layers = half_layers,
                   .local_spec = Argument(arguments, "transformer_impl") == "local"};
  if (shape.dialect.gate_last || IsOn(arguments, "swiglu") || IsOn(arguments, "gated_linear_unit") ||
      IsOn(arguments, "quick_geglu"))
    shape.modules = kLlamaModules;
  return MegatronArgs{std::move(model), std::move(shape)};
}

Result<MegatronShape> ReadMegatronTraining(const PyValue& root, double checkpoint_version,
                                           ReaderOptions& options, Manifest& manifest) {
  const PyValue* args = Find(root, "args");
  CAIRN_ASSIGN_OR_RETURN(MegatronShape shape,
                         args ? ReadShapeOfArgs(*args, checkpoint_version, options, manifest)
                              : ReadShapeGiven(options, manifest));
  if (options.vocab_size > 0)
    manifest.model.vocab_size = shape.vocab = static_cast<int64_t>(options.vocab_size);
  manifest.state = MegatronState(root);
  manifest.step = IntField(manifest.state, "iteration");
  return shape;
}

// One expert, or in Megatron's older form all of the rank, each input-major.
Result<std::vector<MegatronSlice>> SlicesOfExperts(const MegatronSlice& slice, const MegatronExpert& place,
                                                   const MegatronShape& shape, int ep, int ranks) {
  const StoredArray& array = slice.tensor;
  const auto local = static_cast<uint64_t>(shape.experts / ranks),
             hidden = static_cast<uint64_t>(shape.hidden);
  const uint64_t count = place.expert ? 1 : local, volume = array.shape.Volume();
  if (array.transposed || array.shape.rank() == 0 || place.expert.value_or(0) >= local ||
      (!place.expert && (volume == 0 || volume % count != 0 || volume / count % hidden != 0)))
    return Corrupt("{} of shape {} does not fit {} experts of {} ranks", array.name, ToString(array.shape),
                   shape.experts, ranks);
  const uint64_t of_one = volume / count;
  const Dims one = place.expert    ? WithFirst(1, array.shape)
                   : place.is_down ? Dims{1, of_one / hidden, hidden}
                                   : Dims{1, hidden, of_one / hidden};
  std::vector<MegatronSlice> slices(count, slice);
  for (uint64_t i = 0; i < count; ++i) {
    slices[i].tensor = StretchOf(array, i * of_one, one);
    slices[i].tensor.transposed = !place.expert;
    slices[i].shape = slices[i].tensor.tensor_shape();
    slices[i].box = Box::Whole(slices[i].shape);
    slices[i].box.offset[0] = static_cast<uint64_t>(ep) * local + place.expert.value_or(i);
    slices[i].shape[0] = static_cast<uint64_t>(shape.experts);
  }
  return slices;
}

Status HasNoPlace(const std::string& name) {
  for (const std::string_view adapter : {"adapter", "lora"})
    if (name.find(adapter) != name.npos)
      return NotSupported(
          "{} is of an adapter, which has no place in Megatron's GPT; --allow '*{}*' leaves it out and takes "
          "the base model",
          name, adapter);
  return NotSupported("{} has no place in Megatron's GPT; --allow '{}' leaves it out", name, name);
}

Status NumberHasNoPlace(const std::string& name, Role role) {
  return NotSupported(
      "{} has a {} that is one number, which cannot be kept for Megatron's parameters: a fused one becomes "
      "several",
      name, Name(role));
}

Status MegatronAssembler::Add(const MegatronSlice& slice) {
  const MegatronParameter parameter = FindMegatronParameter(slice.name, shape_.key_value_rank > 0);
  if (!parameter.module) return HasNoPlace(slice.name);
  if (slice.shape.rank() == 0) return NumberHasNoPlace(slice.name, slice.role);
  if (slice.tensor.transposed && !parameter.module->of_experts())
    return NotSupported("{} is stored transposed", slice.tensor.name);
  CAIRN_ASSIGN_OR_RETURN(
      const std::vector<SlicePart> parts,
      PartsOfSlice(slice.tensor.name, parameter, slice.shape, shape_, topology_, slice.tp));
  const uint32_t array = builder_.AddArray(slice.tensor);
  for (const SlicePart& part : parts) {
    if (parameter.module->is_vocabulary() && part.box.extent[0] == 0)
      builder_.account.Omit(Fate::kPadding, builder_.catalog, slice.tensor);
    else
      CAIRN_RETURN_IF_ERROR(AddBox(slice, parameter, part, array, /*first=*/&part == &parts[0]));
  }
  return OkStatus();
}

// The first slice that comes with a box is read; others must be equal to it.
Status MegatronAssembler::AddBox(const MegatronSlice& slice, const MegatronParameter& parameter,
                                 const SlicePart& part, uint32_t array, bool first) {
  const CanonicalModule& module = *FindCanonicalModule(parameter.module->canonical[part.canonical]);
  ParameterSpec spec = SpecOf(module, parameter.bias, slice.layer, shape_);
  spec.shape = part.whole;
  CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, builder_.Tensor(spec, slice.role, slice.tensor.dtype));
  const auto common = Intersect(part.in_array, slice.box);
  if (!common) {
    // A chunk with only rows of padding; in a gated MLP, what the other half reads.
    if (module.is_vocabulary()) builder_.account.Omit(Fate::kPadding, builder_.catalog, slice.tensor);
    return OkStatus();
  }
  const BoxMap chunk{slice.box, Box::Whole(slice.box.extent)};
  const Box box = part.Inverse().ToArray(*common);
  builder_.AddSlice({slice.tensor.Stored({box, chunk.ToArray(*common), part.axes}), tensor, array}, first);
  return OkStatus();
}

}  // namespace cairn
