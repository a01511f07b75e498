// Reading fills the fields from the arguments, then looks at each argument that was not read. Writing is
// checked by reading: the function read from the written arguments must be the function that was to
// be written.
//
// Sources: megatron-core 0.16.1, transformer/mlp.py, transformer/utils.py, models/common/embeddings;
// Megatron-LM, core_transformer_config_from_args; Megatron-DeepSpeed, megatron/model/transformer.py;
// BigScience's fork, megatron/model/glu_activations.py.
#include "convert/formats/megatron_model/megatron_function.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "ckpt/families/fitting_family.h"
#include "convert/formats/megatron_model/megatron_latent.h"
#include "convert/formats/megatron_model/megatron_mixture.h"
#include "convert/formats/training/param_groups.h"
#include "megatron_arguments.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr size_t kMaxListItems = 1 << 16;  // of one list

// Arguments that change the function, and the one value that is supported.
const std::map<std::string, json>& Changing() {
  static const std::map<std::string, json> kChanging = {
      {"mlp_type", "standard"}, {"num_experts", 1}, {"num_moe_experts", 1}, {"rope_type", "rope"}};
  return kChanging;
}

// The lists in arguments/.
bool IsUnderstood(const std::string& name) {
  static const std::set<std::string, std::less<>> kNames = [] {
    std::set<std::string, std::less<>> names;
    for (const char* text : {kMappedText, kHarmlessText}) {
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);)
        if (!line.starts_with('#')) names.insert(line);
    }
    return names;
  }();
  return kNames.contains(name);
}

bool Flag(const json& args, const char* name, bool otherwise = false) {
  const json value = Argument(args, name);
  if (value.is_boolean()) return value.get<bool>();
  return value.is_number() ? value != 0 : otherwise;
}
json FirstArgument(const json& args, std::initializer_list<const char*> names, const json& otherwise) {
  for (const char* name : names)
    if (const json value = Argument(args, name); !value.is_null()) return value;
  return otherwise;
}

std::string Lower(const json& text) {
  std::string lower = text.is_string() ? text.get<std::string>() : "";
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// Yarn of attention that is not latent: Megatron's argument, transformers' name, and Megatron's default.
struct YarnArgument {
  const char* argument;
  const char* name;
  double fallback;
};
constexpr YarnArgument kPlainYarn[] = {
    {"rotary_scaling_factor", "factor", 1},
    {"yarn_original_max_position_embeddings", "original_max_position_embeddings", 4096},
    {"yarn_beta_fast", "beta_fast", 32},
    {"yarn_beta_slow", "beta_slow", 1},
    {"mscale", "mscale", 1},
    {"mscale_all_dim", "mscale_all_dim", 0}};
constexpr const char* kTruncates = "yarn_correction_range_round_to_int";

json ReadYarn(const json& args) {
  json scaling = {{"rope_type", "yarn"}, {"truncate", Flag(args, kTruncates, true)}};
  for (const YarnArgument& yarn : kPlainYarn)
    scaling[yarn.name] = FirstArgument(args, {yarn.argument}, yarn.fallback);
  return scaling;
}

void ReadPositions(const json& args, Model& model) {
  const json type = Argument(args, "position_embedding_type");
  const bool rotary = Flag(args, "use_rotary_position_embeddings");
  const bool yarn = type == "yarn" && !rotary;
  if (rotary || yarn || type == "rope" || type == "rotary")
    model.position_embedding = "rope";
  else if (Flag(args, "alibi") || type == "alibi")
    model.position_embedding = "alibi";
  else if (!type.is_null() && type != "learned_absolute" && type != "absolute")
    model.position_embedding = type;
  else if (!Flag(args, "add_position_embedding", true))
    model.position_embedding = "none";
  if (model.position_embedding != "rope") return;
  model.rotary_base = FirstArgument(args, {"rotary_base", "rope_theta"}, 10000);
  if (const json percent = FirstArgument(args, {"rotary_percent"}, 1); percent != 1)
    model.rotary_percent = percent;
  if (Flag(args, "rotary_interleaved")) model.rotary_interleaved = true;
  if (yarn) {
    const json& scaling = model.rope_scaling = ReadYarn(args);
    const json &one = scaling["mscale"], &all = scaling["mscale_all_dim"];
    // Others take both or none.
    if ((one == 0 || all == 0) && !(one == 1 && all == 0)) model.other["args.mscale"] = one;
  }
  const json interpolation = Argument(args, "rotary_seq_len_interpolation_factor");
  const bool interpolated = interpolation.is_number() && interpolation != 1;
  if (Flag(args, "use_rope_scaling")) {
    model.rope_scaling = Llama3Scaling(FirstArgument(args, {"rope_scaling_factor"}, 8.0));
    if (interpolated) model.rope_scaling["rotary_seq_len_interpolation_factor"] = interpolation;
  } else if (interpolated) {
    model.rope_scaling = {{"rope_type", "linear"}, {"factor", interpolation}};
  }
  const json without = Argument(args, "no_rope_freq");
  const bool all_rotate = without.is_array() && std::ranges::all_of(without, IsUnset);
  if (!IsUnset(without) && !all_rotate) model.layers_without_rope = without;
}

// Layers that see a window: in Megatron, counted from 1, all but every N-th, or those with a 1 in a list.
json LayerTypes(const json& skip, uint64_t layers) {
  json types = json::array();
  for (uint64_t i = 0; i < layers && i < kMaxListItems; ++i) {
    const bool listed = skip.is_array() && i < skip.size() && !IsUnset(skip[i]);
    const bool counted = skip.is_number_integer() && skip > 0 && (i + 1) % skip.get<uint64_t>() != 0;
    types.push_back(listed || counted ? "sliding_attention" : "full_attention");
  }
  return types;
}

void ReadAttention(const json& args, Model& model) {
  const json window = Argument(args, "window_size");
  const bool is_pair = window.is_array() && window.size() == 2 && window[0].is_number_integer() &&
                       window[1].is_number_integer();
  if (is_pair && window[0] >= 0 && (window[1] == 0 || window[1] == -1)) {
    model.sliding_window = window[0].get<int64_t>() + 1;  // Megatron does not count the query's own key
    if (const json skip = Argument(args, "window_attn_skip_freq"); !skip.is_null())
      model.layer_types = LayerTypes(skip, static_cast<uint64_t>(IntOf(model.num_layers)));
  } else if (!IsUnset(window) && !(is_pair && window[0] == -1)) {
    model.sliding_window = window;
  }
  if (const json scale = Argument(args, "softmax_scale"); scale == 1)
    model.scale_attn_weights = false;  // as transformers' GPT-2 spells it
  else if (!IsUnset(scale))
    model.attention_scale = scale;
  if (const json softmax = Argument(args, "softmax_type"); !IsUnset(softmax) && softmax != "vanilla")
    model.softmax = softmax;
}

// F.gelu is exact; fused with its bias, which is the default, it is the tanh approximation, and needs a bias.
std::string Gelu(const json& args) {
  // The newest versions no longer have legacy models.
  const bool knows_legacy =
      args.contains("use_legacy_models") || args.contains("deprecated_use_mcore_models");
  const bool core = Flag(args, "use_mcore_models") || (knows_legacy && !Flag(args, "use_legacy_models"));
  const bool fused = Flag(args, "bias_activation_fusion", Flag(args, "bias_gelu_fusion", true)) &&
                     Flag(args, "add_bias_linear", true);
  if (Flag(args, "onnx_safe") && !core) return "gelu";
  if (Flag(args, "openai_gelu") && !core) return "gelu_new";
  return fused || Flag(args, "use_te_activation_func") ? "gelu_new" : "gelu";
}

void ReadActivation(const json& args, Model& model) {
  const std::string glu = Lower(Argument(args, "glu_activation"));
  if (!glu.empty()) {
    const auto known =
        std::ranges::find(kGatedActivations, glu, &std::pair<std::string_view, std::string_view>::first);
    model.gated_mlp = true;
    model.activation = known == std::end(kGatedActivations) ? glu : known->second;
  } else if (Flag(args, "swiglu")) {
    model.gated_mlp = true;
    model.activation = "silu";
  } else if (Flag(args, "squared_relu")) {
    model.activation = "relu2";
  } else if (Flag(args, "quick_geglu")) {
    model.gated_mlp = true;
    model.activation = Argument(args, "glu_linear_offset") == 1 ? "swigluoai" : "quick_gelu";
  } else {
    model.activation = Gelu(args);
  }
  if (glu.empty() && Flag(args, "gated_linear_unit")) model.gated_mlp = true;
  const json offset = Argument(args, "glu_linear_offset");
  if (!IsUnset(offset) && model.activation != "swigluoai") model.other["args.glu_linear_offset"] = offset;
  if (const json limit = Argument(args, "activation_func_clamp_value"); !IsUnset(limit))
    model.activation_limit = limit;
}

void ReadNorms(const json& args, Model& model) {
  const json epsilon = FirstArgument(args, {"norm_epsilon", "layernorm_epsilon"}, 1e-5);
  model.layernorm_epsilon = epsilon;
  const json norm = Argument(args, "normalization");
  const std::string kind = Lower(norm);
  if (kind == "rmsnorm")
    model.normalization = "RMSNorm";
  else if (!kind.empty() && kind != "layernorm")
    model.normalization = norm;
  if (Flag(args, "apply_residual_connection_post_layernorm")) model.residual_post_layernorm = true;
  if (Flag(args, "apply_layernorm_1p") || Flag(args, "layernorm_zero_centered_gamma"))
    model.norm_weight_minus_one = true;
}

// The inverse of the functions above; `core`: for Megatron-Core.
void AddNorms(const Model& function, bool core, json& args) {
  args["layernorm_epsilon"] = args["norm_epsilon"] = function.layernorm_epsilon;
  const bool rms = function.normalization == "RMSNorm";
  args["normalization"] = core ? (rms ? "RMSNorm" : "LayerNorm") : (rms ? "rmsnorm" : "layernorm");
  args["apply_layernorm_1p"] = core && function.norm_weight_minus_one == true;
  args["apply_residual_connection_post_layernorm"] = !core && function.residual_post_layernorm == true;
}

void AddPositions(const Model& function, bool core, json& args) {
  const bool rope = function.position_embedding == "rope",
             alibi = function.position_embedding == "alibi" && !core;
  args["position_embedding_type"] = rope ? "rope" : alibi ? "alibi" : "learned_absolute";
  args["add_position_embedding"] = !rope && !alibi;
  args["use_rotary_position_embeddings"] = rope;
  if (!rope) return;
  args["rotary_percent"] = function.rotary_percent;
  args[core ? "rotary_base" : "rope_theta"] = function.rotary_base;
  if (!core) return;
  args["rotary_interleaved"] = function.rotary_interleaved;
  args["no_rope_freq"] = function.layers_without_rope;
  const json& scaling = function.rope_scaling;
  const json factor = scaling.is_object() ? Argument(scaling, "factor") : json();
  const bool llama3 = scaling.is_object() && scaling == Llama3Scaling(factor);
  const bool linear = scaling.is_object() && Argument(scaling, "rope_type") == "linear";
  args["use_rope_scaling"] = llama3;
  if (scaling.is_object() && Argument(scaling, "rope_type") == "yarn" && !IsLatent(args)) {
    args["position_embedding_type"] = "yarn";
    args["use_rotary_position_embeddings"] = false;
    args[kTruncates] = Argument(scaling, "truncate");
    for (const YarnArgument& yarn : kPlainYarn)
      args[yarn.argument] = Or(Argument(scaling, yarn.name), yarn.fallback);
  }
  if (llama3) args["rope_scaling_factor"] = factor;
  args["rotary_seq_len_interpolation_factor"] = linear ? factor : json();
}

void AddAttention(const Model& function, json& args) {
  const json& window = function.sliding_window;
  args["window_size"] = window.is_number_integer() ? json{window.get<int64_t>() - 1, 0} : json();
  args["window_attn_skip_freq"] = nullptr;
  for (const json& type : function.layer_types.is_array() ? function.layer_types : json())
    args["window_attn_skip_freq"].push_back(type == "sliding_attention" ? 1 : 0);
  args["softmax_scale"] = function.attention_scale;
  if (function.softmax != "vanilla") args["softmax_type"] = function.softmax;
}

void AddActivation(const Model& function, bool core, json& args) {
  const bool gated = function.gated_mlp == true, bias = Flag(args, "add_bias_linear", true),
             tanh = function.activation == "gelu_new" && !gated;
  args["squared_relu"] = function.activation == "relu2" && !gated;
  args["bias_gelu_fusion"] = tanh && bias;
  args["openai_gelu"] = tanh && !bias && !core;
  args["onnx_safe"] = nullptr;
  const bool openai = gated && function.activation == "swigluoai" && core;
  if (openai) args.update({{"quick_geglu", true}, {"glu_linear_offset", 1.0}});
  if (core && !function.activation_limit.is_null())
    args["activation_func_clamp_value"] = function.activation_limit;
  args["swiglu"] = gated && !openai && !args.contains("glu_activation");
  if (args.contains("glu_activation"))
    for (const auto& [glu, activation] : kGatedActivations)
      if (function.activation == activation) args["glu_activation"] = glu;
}

void ReadOtherArguments(const json& args, const std::function<bool(const std::string&)>& allowed,
                        Model& model) {
  const bool mixture = !model.num_experts.is_null();
  for (const auto& [name, value] : args.items()) {
    const bool understood = (IsUnderstood(name) && !(mixture && ChangesMixtures(name))) ||
                            (mixture && name == "num_experts") || (IsLatent(args) && name == "rope_type");
    if (understood || IsUnset(value)) continue;
    const auto changing = Changing().find(name);
    const bool supported = changing != Changing().end() &&
                           (value == changing->second || value == json::array({changing->second}));
    const std::string full = "args." + name;
    if (!supported && !allowed(full)) model.other[full] = value;
  }
}

// The modules that `program` makes with `args`, whose function is `model`. Megatron-DeepSpeed has neither
// add_qkv_bias nor qk_layernorm; BigScience's fork, the only one with alibi, always has LayerNorm and biases.
DenseModules DenseModulesOf(const json& args, const Model& model, MegatronProgram program) {
  const bool core = program == MegatronProgram::kCore;
  const json positions = Or(model.position_embedding, "learned");
  const bool bigscience = !core && positions == "alibi";
  const bool linear = bigscience || Flag(args, "add_bias_linear", true);
  return {.positions = positions == "learned",
          .embedding_norm = bigscience && Flag(args, "embed_layernorm"),
          .norm_bias = bigscience || Or(model.normalization, "LayerNorm") == "LayerNorm",
          .query_key_value_bias = linear || (core && Flag(args, "add_qkv_bias")),
          .query_key_norm = core && Flag(args, "qk_layernorm"),
          .sinks = core && model.softmax == "learnable",
          .linear_bias = linear,
          .gate = model.gated_mlp == true};
}

DecoderModules ModulesOfArguments(const json& args, const Model& model, const DenseModules& dense) {
  const bool plain =
      model.num_experts.is_null() && model.kv_lora_rank.is_null() && model.mtp_layers.is_null();
  return plain ? DecoderModules(dense) : LayerByLayer(dense, args, model);
}

// The family that was written, or the first that fits. No argument of Megatron-LM's says whether the
// embedding has a norm.
std::string FamilyOf(const json& args, Model model) {
  model.architecture = FamilyOfText(Argument(args, "cairn_architecture"));
  DenseModules modules = DenseModulesOf(args, model, MegatronProgram::kCore);
  std::vector<DecoderModules> possible = {ModulesOfArguments(args, model, modules)};
  modules.embedding_norm = true;
  possible.push_back(ModulesOfArguments(args, model, modules));
  return FittingFamily(std::move(model), possible);
}

json AsJson(const PyValue& value, int depth) {
  if (depth > 4) return "...";
  if (auto plain = PlainJson(value)) return *std::move(plain);
  switch (value.kind) {
    case PyKind::kList:
    case PyKind::kTuple: {
      json list = json::array();
      for (size_t i = 0; i < value.items.size() && i < kMaxListItems; ++i)
        list.push_back(AsJson(*value.items[i], depth + 1));
      return list;
    }
    case PyKind::kObject:
      if (value.items.size() == 1) return AsJson(*value.items[0], depth + 1);  // an enum
      return value.ClassName();
    default:
      return value.ClassName();
  }
}

}  // namespace

bool IsUnset(const json& value) {
  return value.is_null() || value == false || value == 0 || (!value.is_primitive() && value.empty()) ||
         value == "";
}

std::string_view NameOf(MegatronProgram program) {
  return program == MegatronProgram::kCore ? "Megatron-Core" : "Megatron-DeepSpeed";
}

json MegatronArgumentsOf(const PyValue& args) {
  json result = json::object();
  const PyValue* attributes = args.is(PyKind::kDict) ? &args : args.state ? args.state : args.contents;
  if (!attributes || !attributes->is(PyKind::kDict)) return result;
  for (size_t i = 0; i + 1 < attributes->items.size(); i += 2)
    if (const auto key = AsText(attributes->items[i]))
      result[std::string(*key)] = AsJson(*attributes->items[i + 1], 0);
  // BigScience's enum of positions.
  if (json& type = result["position_embedding_type"]; type.is_number())
    type = type == 1 ? json("rope") : type == 2 ? json("learned_absolute") : type == 3 ? json("alibi") : type;
  return result;
}

void ReadMegatronFunction(const json& args, const std::function<bool(const std::string&)>& allowed,
                          Model& model) {
  ReadPositions(args, model);
  ReadAttention(args, model);
  ReadLatentAttention(args, model);
  ReadActivation(args, model);
  ReadNorms(args, model);
  if (const json layers = Argument(args, "mtp_num_layers"); layers.is_number_integer() && layers > 0)
    model.mtp_layers = layers;
  else if (!IsUnset(layers))
    model.other["args.mtp_num_layers"] = layers;
  ReadRouter(args, model);
  ReadOtherArguments(args, allowed, model);
  model.rest["function"] = kFunctionVersion;
  if (model.gated_mlp == true || model.position_embedding == "rope") {
    const bool linear = Flag(args, "add_bias_linear", true);
    model.rest["attention_bias"] = model.rest["query_key_value_bias"] = linear || Flag(args, "add_qkv_bias");
    model.rest["mlp_bias"] = model.rest["attention_out_bias"] = linear;
    model.rest["use_qk_norm"] = Flag(args, "qk_layernorm");
  }
  model.architecture = FamilyOf(args, model);
}

void AddFunctionArguments(const Model& model, MegatronProgram program, json& args) {
  const Model function = FunctionOf(model);
  const bool core = program == MegatronProgram::kCore;
  args["cairn_architecture"] = TextOfFamily(model.architecture);
  AddNorms(function, core, args);
  AddPositions(function, core, args);
  if (core) {
    AddAttention(function, args);
    AddLatentArguments(function, args);
    AddRouterArguments(function, args);
  }
  AddActivation(function, core, args);
}

std::span<const SizeArgument> SizeArguments() {
  static constexpr bool kOfExperts = true;
  static constexpr SizeArgument kArguments[] = {
      {"num_layers", &Model::num_layers},
      {"hidden_size", &Model::hidden_size},
      {"ffn_hidden_size", &Model::ffn_hidden_size},
      {"num_attention_heads", &Model::num_attention_heads},
      {"kv_channels", &Model::head_dim},
      {"num_query_groups", &Model::num_key_value_heads},
      {"num_key_value_heads", &Model::num_key_value_heads},
      {"vocab_size", &Model::vocab_size},
      {"num_experts", &Model::num_experts, kOfExperts},
      {"moe_ffn_hidden_size", &Model::moe_ffn_hidden_size, kOfExperts},
      {kSharedExpertSize, &Model::shared_expert_ffn_hidden_size, kOfExperts}};
  return kArguments;
}

Result<DecoderModules> CheckFunctionArguments(const Model& model, MegatronProgram program, const json& args) {
  Model back;
  for (const SizeArgument& size : SizeArguments())
    if (const json value = Argument(args, size.name); !value.is_null()) back.*size.field = value;
  back.tied_embeddings = !Flag(args, "untie_embeddings_and_output_weights");
  ReadMegatronFunction(
      args, [](const std::string&) { return false; }, back);
  CAIRN_RETURN_IF_ERROR(SameFunction(model, back, NameOf(program)));
  return ModulesOfArguments(args, back, DenseModulesOf(args, back, program));
}

}  // namespace cairn
