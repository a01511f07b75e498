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
#include "ckpt/model/model_function.h"
#include "convert/formats/megatron_model/megatron_latent.h"
#include "convert/formats/megatron_model/megatron_mixture.h"
#include "convert/formats/training/param_groups.h"
#include "megatron_arguments.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr size_t kMaxListItems = 1 << 16;  // of one list

// BigScience's --glu-activation, and the activation of its gate.
constexpr std::pair<std::string_view, std::string_view> kGlu[] = {
    {"swiglu", "silu"}, {"geglu", "gelu"}, {"reglu", "relu"}, {"liglu", "linear"}};

// Megatron-Core's rotary scaling, which takes only the factor.
json Llama3Scaling(const json& factor) {
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

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

json Get(const json& args, const char* name) { return args.value(name, json()); }
bool Flag(const json& args, const char* name, bool otherwise = false) {
  const json value = Get(args, name);
  if (value.is_boolean()) return value.get<bool>();
  return value.is_number() ? value != 0 : otherwise;
}
json FirstArgument(const json& args, std::initializer_list<const char*> names, const json& otherwise) {
  for (const char* name : names)
    if (const json value = Get(args, name); !value.is_null()) return value;
  return otherwise;
}

std::string Lower(const json& text) {
  std::string lower = text.is_string() ? text.get<std::string>() : "";
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

void ReadPositions(const json& args, json& facts) {
  const json type = Get(args, "position_embedding_type");
  const bool rotary = Flag(args, "use_rotary_position_embeddings");
  if (rotary || type == "rope" || type == "rotary")
    facts["position_embedding"] = "rope";
  else if (Flag(args, "alibi") || type == "alibi")
    facts["position_embedding"] = "alibi";
  else if (!type.is_null() && type != "learned_absolute" && type != "absolute")
    facts["position_embedding"] = type;
  else if (!Flag(args, "add_position_embedding", true))
    facts["position_embedding"] = "none";
  if (facts.value("position_embedding", json()) != "rope") return;
  facts["rotary_base"] = FirstArgument(args, {"rotary_base", "rope_theta"}, 10000);
  if (const json percent = FirstArgument(args, {"rotary_percent"}, 1); percent != 1)
    facts["rotary_percent"] = percent;
  if (Flag(args, "rotary_interleaved")) facts["rotary_interleaved"] = true;
  const json interpolation = Get(args, "rotary_seq_len_interpolation_factor");
  const bool interpolated = interpolation.is_number() && interpolation != 1;
  if (Flag(args, "use_rope_scaling")) {
    facts["rope_scaling"] = Llama3Scaling(FirstArgument(args, {"rope_scaling_factor"}, 8.0));
    if (interpolated) facts["rope_scaling"]["rotary_seq_len_interpolation_factor"] = interpolation;
  } else if (interpolated) {
    facts["rope_scaling"] = {{"rope_type", "linear"}, {"factor", interpolation}};
  }
  const json without = Get(args, "no_rope_freq");
  const bool all_rotate = without.is_array() && std::ranges::all_of(without, IsUnset);
  if (!IsUnset(without) && !all_rotate) facts["layers_without_rope"] = without;
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

void ReadAttention(const json& args, json& facts) {
  const json window = Get(args, "window_size");
  const bool is_pair = window.is_array() && window.size() == 2 && window[0].is_number_integer() &&
                       window[1].is_number_integer();
  if (is_pair && window[0] >= 0 && (window[1] == 0 || window[1] == -1)) {
    facts["sliding_window"] = window[0].get<int64_t>() + 1;  // Megatron does not count the query's own key
    if (const json skip = Get(args, "window_attn_skip_freq"); !skip.is_null())
      facts["layer_types"] = LayerTypes(skip, facts.value("num_layers", uint64_t{0}));
  } else if (!IsUnset(window) && !(is_pair && window[0] == -1)) {
    facts["sliding_window"] = window;
  }
  if (const json scale = Get(args, "softmax_scale"); scale == 1)
    facts["scale_attn_weights"] = false;  // as transformers' GPT-2 spells it
  else if (!IsUnset(scale))
    facts["attention_scale"] = scale;
  if (const json softmax = Get(args, "softmax_type"); !IsUnset(softmax) && softmax != "vanilla")
    facts["softmax"] = softmax;
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

void ReadActivation(const json& args, json& facts) {
  const std::string glu = Lower(Get(args, "glu_activation"));
  if (!glu.empty()) {
    const auto known = std::ranges::find(kGlu, glu, &std::pair<std::string_view, std::string_view>::first);
    facts["gated_mlp"] = true;
    facts["activation"] = known == std::end(kGlu) ? glu : known->second;
  } else if (Flag(args, "swiglu")) {
    facts["gated_mlp"] = true;
    facts["activation"] = "silu";
  } else if (Flag(args, "squared_relu")) {
    facts["activation"] = "relu2";
  } else {
    facts["activation"] = Gelu(args);
  }
  if (glu.empty() && Flag(args, "gated_linear_unit")) facts["gated_mlp"] = true;
}

void ReadNorms(const json& args, json& facts) {
  const json epsilon = FirstArgument(args, {"norm_epsilon", "layernorm_epsilon"}, 1e-5);
  facts["layernorm_epsilon"] = epsilon;
  const json norm = Get(args, "normalization");
  const std::string kind = Lower(norm);
  if (kind == "rmsnorm")
    facts["normalization"] = "RMSNorm";
  else if (!kind.empty() && kind != "layernorm")
    facts["normalization"] = norm;
  if (Flag(args, "apply_residual_connection_post_layernorm")) facts["residual_post_layernorm"] = true;
  if (Flag(args, "apply_layernorm_1p") || Flag(args, "layernorm_zero_centered_gamma"))
    facts["norm_weight_minus_one"] = true;
}

void ReadOtherArguments(const json& args, const std::function<bool(const std::string&)>& allowed,
                        json& facts) {
  const bool mixture = facts.contains("num_experts");
  for (const auto& [name, value] : args.items()) {
    const bool understood = (IsUnderstood(name) && !(mixture && ChangesMixtures(name))) ||
                            (mixture && name == "num_experts") || (IsLatent(args) && name == "rope_type");
    if (understood || IsUnset(value)) continue;
    const auto changing = Changing().find(name);
    const bool supported = changing != Changing().end() &&
                           (value == changing->second || value == json::array({changing->second}));
    const std::string full = "args." + name;
    if (!supported && !allowed(full)) facts["other"][full] = value;
  }
}

// The modules that `program` makes with `args`, whose function is `facts`. Megatron-DeepSpeed has neither
// add_qkv_bias nor qk_layernorm; BigScience's fork, the only one with alibi, always has LayerNorm and biases.
DenseModules DenseModulesOf(const json& args, const json& facts, MegatronProgram program) {
  const bool core = program == MegatronProgram::kCore;
  const json positions = facts.value("position_embedding", json("learned"));
  const bool bigscience = !core && positions == "alibi";
  const bool linear = bigscience || Flag(args, "add_bias_linear", true);
  return {.positions = positions == "learned",
          .embedding_norm = bigscience && Flag(args, "embed_layernorm"),
          .norm_bias = bigscience || facts.value("normalization", json("LayerNorm")) == "LayerNorm",
          .query_key_value_bias = linear || (core && Flag(args, "add_qkv_bias")),
          .query_key_norm = core && Flag(args, "qk_layernorm"),
          .linear_bias = linear,
          .gate = facts.value("gated_mlp", false)};
}

DecoderModules ModulesOfArguments(const json& args, const json& facts, const DenseModules& dense) {
  const bool plain =
      !facts.contains("num_experts") && !facts.contains("kv_lora_rank") && !facts.contains("mtp_layers");
  return plain ? DecoderModules(dense) : LayerByLayer(dense, args, facts);
}

// The family that was written, or the first that fits. No argument of Megatron-LM's says whether the
// embedding has a norm.
std::string FamilyOf(const json& args, json facts) {
  facts["architecture"] = Get(args, "cairn_architecture");
  DenseModules modules = DenseModulesOf(args, facts, MegatronProgram::kCore);
  std::vector<DecoderModules> possible = {ModulesOfArguments(args, facts, modules)};
  modules.embedding_norm = true;
  possible.push_back(ModulesOfArguments(args, facts, modules));
  return FittingFamily(std::move(facts), possible);
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
                          json& facts) {
  ReadPositions(args, facts);
  ReadAttention(args, facts);
  ReadLatentAttention(args, facts);
  ReadActivation(args, facts);
  ReadNorms(args, facts);
  if (const json layers = Get(args, "mtp_num_layers"); layers.is_number_integer() && layers > 0)
    facts["mtp_layers"] = layers;
  else if (!IsUnset(layers))
    facts["other"]["args.mtp_num_layers"] = layers;
  ReadRouter(args, facts);
  ReadOtherArguments(args, allowed, facts);
  facts["function"] = kFunctionVersion;
  if (facts.value("gated_mlp", false) || facts.value("position_embedding", json()) == "rope") {
    const bool linear = Flag(args, "add_bias_linear", true);
    facts["attention_bias"] = linear || Flag(args, "add_qkv_bias");
    facts["mlp_bias"] = linear;
  }
  if (facts.contains("num_experts")) {  // as families of mixtures spell it
    facts["query_key_value_bias"] = facts.value("attention_bias", false);
    facts["use_qk_norm"] = Flag(args, "qk_layernorm");
  }
  facts["architecture"] = FamilyOf(args, facts);
}

void AddFunctionArguments(const json& model, MegatronProgram program, json& args) {
  const json of = FunctionOf(model);
  const bool core = program == MegatronProgram::kCore, gated = of["gated_mlp"] == true;
  const bool rope = of["position_embedding"] == "rope", alibi = of["position_embedding"] == "alibi" && !core;
  const json &scaling = of["rope_scaling"], &window = of["sliding_window"];
  args["cairn_architecture"] = model.value("architecture", json());
  args["layernorm_epsilon"] = args["norm_epsilon"] = of["layernorm_epsilon"];
  const bool rms = of["normalization"] == "RMSNorm";
  args["normalization"] = core ? (rms ? "RMSNorm" : "LayerNorm") : (rms ? "rmsnorm" : "layernorm");
  args["apply_layernorm_1p"] = false;
  args["apply_residual_connection_post_layernorm"] = !core && of["residual_post_layernorm"] == true;
  args["position_embedding_type"] = rope ? "rope" : alibi ? "alibi" : "learned_absolute";
  args["add_position_embedding"] = !rope && !alibi;
  args["use_rotary_position_embeddings"] = rope;
  if (rope) {
    args["rotary_percent"] = of["rotary_percent"];
    args[core ? "rotary_base" : "rope_theta"] = of["rotary_base"];
  }
  if (rope && core) {
    args["rotary_interleaved"] = of["rotary_interleaved"];
    args["no_rope_freq"] = of["layers_without_rope"];
    args["use_rope_scaling"] =
        scaling.is_object() && scaling == Llama3Scaling(scaling.value("factor", json()));
    if (args["use_rope_scaling"] == true) args["rope_scaling_factor"] = scaling["factor"];
    args["rotary_seq_len_interpolation_factor"] =
        scaling.is_object() && scaling.value("rope_type", "") == "linear" ? scaling.value("factor", json())
                                                                          : json();
  }
  if (core) {
    args["window_size"] = window.is_number_integer() ? json{window.get<int64_t>() - 1, 0} : json();
    args["window_attn_skip_freq"] = nullptr;
    if (of["layer_types"].is_array())
      for (const json& type : of["layer_types"])
        args["window_attn_skip_freq"].push_back(type == "sliding_attention" ? 1 : 0);
    args["softmax_scale"] = of["attention_scale"];
  }
  if (core) AddLatentArguments(of, args);
  if (core) AddRouterArguments(of, args);
  const bool bias = Flag(args, "add_bias_linear", true), tanh = of["activation"] == "gelu_new" && !gated;
  args["squared_relu"] = of["activation"] == "relu2" && !gated;
  args["bias_gelu_fusion"] = tanh && bias;
  args["openai_gelu"] = tanh && !bias && !core;
  args["onnx_safe"] = nullptr;
  args["swiglu"] = gated && !args.contains("glu_activation");
  if (args.contains("glu_activation"))
    for (const auto& [glu, activation] : kGlu)
      if (of["activation"] == activation) args["glu_activation"] = glu;
}

Result<DecoderModules> CheckFunctionArguments(const json& model, MegatronProgram program, const json& args) {
  json back = {{"num_layers", args.value("num_layers", json())},
               {"hidden_size", args.value("hidden_size", json())},
               {"num_attention_heads", args.value("num_attention_heads", json())},
               {"num_key_value_heads", args.value("num_query_groups", json())},
               {"head_dim", args.value("kv_channels", json())},
               {"tied_embeddings", args.value("untie_embeddings_and_output_weights", false) ? false : true}};
  for (const auto& [field, name] :
       {std::pair("num_experts", "num_experts"),
        std::pair("shared_expert_ffn_hidden_size", "moe_shared_expert_intermediate_size")})
    if (const json value = Get(args, name); !value.is_null() && program == MegatronProgram::kCore)
      back[field] = value;
  ReadMegatronFunction(
      args, [](const std::string&) { return false; }, back);
  CAIRN_RETURN_IF_ERROR(SameFunction(model, back, NameOf(program)));
  return ModulesOfArguments(args, back, DenseModulesOf(args, back, program));
}

}  // namespace cairn
