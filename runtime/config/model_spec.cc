// Flags are read as Megatron-LM reads them (megatron/training/arguments.py, core_transformer_config_from_args
// and the legacy ParallelMLP); Megatron has no flags `activation`, `rope-scaling` and
// `gpt-j-residual`. GELU: fused with its bias, which is Megatron's default, it is the tanh approximation;
// without fusion it is exact.

#include "runtime/config/model_spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "ckpt/base/enum_names.h"
#include "ckpt/families/fitting_family.h"
#include "ckpt/model/canonical_modules.h"
#include "runtime/config/checkpoint_model.h"

namespace cairn {
namespace {

using nlohmann::json;

// In the order of the enumerators.
constexpr std::string_view kNormalizations[] = {"LayerNorm", "RMSNorm"};
constexpr std::string_view kPositions[] = {"learned", "rope", "alibi", "none"};
constexpr std::string_view kActivations[] = {"gelu", "gelu_new", "relu", "relu2", "silu", "linear"};

template <typename Choice>
Result<Choice> ChoiceNamed(std::span<const std::string_view> names, std::string_view name,
                           std::string_view where) {
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<Choice>(found - names.begin());
  return NotSupported("{} is '{}', which cairn train does not support; it must be one of {}", where, name,
                      fmt::join(names, ", "));
}

ModelShape SizesOf(const TrainConfig& c) {
  return {.layers = c.num_layers,
          .hidden = c.hidden_size,
          .heads = c.num_attention_heads,
          .kv_heads = c.group_query_attention ? c.num_query_groups : c.num_attention_heads,
          .head_dim = c.head_dim(),
          .ffn = c.ffn(),
          .vocab = c.vocab_size,
          .positions = c.positions(),
          .tied = !c.untie_embeddings_and_output_weights};
}

Status ReadActivation(const TrainConfig& c, ModelSpec& spec) {
  const int ways = c.swiglu + !c.glu_activation.empty() + c.squared_relu;
  if (ways > 1) return InvalidArgument("--swiglu, --glu-activation and --squared-relu exclude each other");
  if (!c.activation.empty()) {
    CAIRN_ASSIGN_OR_RETURN(spec.activation, ActivationNamed(c.activation, "--activation"));
  } else if (c.swiglu) {
    spec.activation = Activation::kSilu;
  } else if (!c.glu_activation.empty()) {
    const auto gated =
        std::ranges::find(kGatedActivations, c.glu_activation, [](const auto& glu) { return glu.first; });
    if (gated == std::end(kGatedActivations))
      return InvalidArgument("--glu-activation is '{}'; it must be swiglu, geglu, reglu or liglu",
                             c.glu_activation);
    CAIRN_ASSIGN_OR_RETURN(spec.activation, ActivationNamed(gated->second, "--glu-activation"));
  } else if (c.squared_relu) {
    spec.activation = Activation::kSquaredRelu;
  } else {
    const bool fused = !c.no_bias_gelu_fusion && !c.disable_bias_linear;
    spec.activation = fused || c.openai_gelu ? Activation::kGeluTanh : Activation::kGelu;
  }
  return OkStatus();
}

// From the three flags that scale rotary positions.
Result<json> ScalingOfFlags(const TrainConfig& c) {
  const bool interpolates = c.rotary_seq_len_interpolation_factor > 0;
  if (!c.rope_scaling.empty() + c.use_rope_scaling + interpolates > 1)
    return InvalidArgument(
        "--rope-scaling, --use-rope-scaling and --rotary-seq-len-interpolation-factor exclude each other");
  if (interpolates) return json{{"rope_type", "linear"}, {"factor", c.rotary_seq_len_interpolation_factor}};
  if (c.use_rope_scaling) return Llama3Scaling(c.rope_scaling_factor);
  if (c.rope_scaling.empty()) return json();
  json scaling = json::parse(c.rope_scaling, nullptr, /*allow_exceptions=*/false);
  if (!scaling.is_object())
    return InvalidArgument("--rope-scaling is '{}'; it must be a JSON object such as {}", c.rope_scaling,
                           R"({"rope_type": "linear", "factor": 2})");
  return scaling;
}

Status ReadPositions(const TrainConfig& c, ModelSpec& spec) {
  const std::string type = c.use_rotary_position_embeddings ? "rope" : c.position_embedding_type;
  CAIRN_ASSIGN_OR_RETURN(spec.position, PositionNamed(type == "learned_absolute" ? "learned" : type,
                                                      "--position-embedding-type"));
  if (spec.position != Position::kRotary) return OkStatus();
  spec.rotary = {.base = c.rotary_base, .percent = c.rotary_percent, .interleaved = c.rotary_interleaved};
  CAIRN_ASSIGN_OR_RETURN(const json scaling, ScalingOfFlags(c));
  if (!scaling.is_null()) spec.rotary.scaling_json = scaling.dump();
  CAIRN_ASSIGN_OR_RETURN(spec.rotary.scaling,
                         ReadRopeScaling(scaling, static_cast<double>(c.positions()), spec.RotatedPairs()));
  return OkStatus();
}

void AddRotary(const RotarySpec& rotary, Model& model) {
  model.rotary_base = rotary.base;
  if (rotary.percent != 1) model.rotary_percent = rotary.percent;
  if (rotary.interleaved) model.rotary_interleaved = true;
  if (!rotary.scaling_json.empty()) model.rope_scaling = json::parse(rotary.scaling_json);
}

void AddAttention(const ModelSpec& spec, Model& model) {
  const ModelShape& shape = spec.shape;
  if (shape.kv_heads != shape.heads) model.num_key_value_heads = shape.kv_heads;
  if (shape.QueryWidth() != shape.hidden) model.head_dim = shape.head_dim;
  if (spec.attention_scale > 0) model.attention_scale = spec.attention_scale;
  if (spec.attention_scale_by_layer) model.attention_scale_by_layer = true;
  if (spec.window > 0) model.sliding_window = spec.window;
  for (const bool windowed : spec.windowed)
    model.layer_types.push_back(windowed ? "sliding_attention" : "full_attention");
}

}  // namespace

std::string_view NameOf(Normalization choice) {
  return NameIn<Normalization::kRmsNorm>(kNormalizations, choice);
}
std::string_view NameOf(Position choice) { return NameIn<Position::kNone>(kPositions, choice); }
std::string_view NameOf(Activation choice) { return NameIn<Activation::kLinear>(kActivations, choice); }

Result<Normalization> NormalizationNamed(std::string_view name, std::string_view where) {
  return ChoiceNamed<Normalization>(kNormalizations, name, where);
}
Result<Position> PositionNamed(std::string_view name, std::string_view where) {
  return ChoiceNamed<Position>(kPositions, name, where);
}
Result<Activation> ActivationNamed(std::string_view name, std::string_view where) {
  return ChoiceNamed<Activation>(kActivations, name, where);
}

Result<ModelSpec> SpecOfFlags(const TrainConfig& c) {
  ModelSpec spec{.shape = SizesOf(c),
                 .norm_epsilon = c.layernorm_epsilon,
                 .parallel_residual = c.gpt_j_residual,
                 .residual_behind_norm = c.apply_residual_connection_post_layernorm};
  const std::string norm = c.normalization == "layernorm" ? "LayerNorm"  // as Megatron-DeepSpeed has it
                           : c.normalization == "rmsnorm" ? "RMSNorm"
                                                          : c.normalization;
  CAIRN_ASSIGN_OR_RETURN(spec.normalization, NormalizationNamed(norm, "--normalization"));
  CAIRN_RETURN_IF_ERROR(ReadActivation(c, spec));
  CAIRN_RETURN_IF_ERROR(ReadPositions(c, spec));
  spec.shape.modules = DenseModules{.positions = spec.position == Position::kLearned,
                                    .embedding_norm = c.embed_layernorm,
                                    .norm_bias = spec.normalization == Normalization::kLayerNorm,
                                    .query_key_value_bias = !c.disable_bias_linear || c.add_qkv_bias,
                                    .query_key_norm = c.qk_layernorm,
                                    .linear_bias = !c.disable_bias_linear,
                                    .gate = c.swiglu || !c.glu_activation.empty()};
  return spec;
}

ModelSpec SpecOf(const TrainConfig& config) {
  return config.of_checkpoint ? config.of_checkpoint->spec : SpecOfFlags(config).value();
}

Model FactsOf(const ModelSpec& spec) {
  const ModelShape& shape = spec.shape;
  Model model;
  for (const auto size : {&Model::num_layers, &Model::hidden_size, &Model::num_attention_heads,
                          &Model::ffn_hidden_size, &Model::vocab_size, &Model::max_position_embeddings})
    model.*size = shape.*FieldOf(size).size;
  model.tied_embeddings = shape.tied;
  model.layernorm_epsilon = spec.norm_epsilon;
  if (spec.normalization != Normalization::kLayerNorm) model.normalization = NameOf(spec.normalization);
  if (spec.position != Position::kLearned) model.position_embedding = NameOf(spec.position);
  if (spec.position == Position::kRotary) AddRotary(spec.rotary, model);
  if (spec.activation != Activation::kGeluTanh) model.activation = NameOf(spec.activation);
  if (shape.IsGated()) model.gated_mlp = true;
  if (spec.parallel_residual) model.parallel_residual = true;
  if (spec.residual_behind_norm) model.residual_post_layernorm = true;
  AddAttention(spec, model);
  // The families' tables need these fields.
  if (spec.position == Position::kRotary) {
    model.rest["attention_bias"] = shape.modules.HasBias("attention.output");
    model.rest["mlp_bias"] = shape.modules.HasBias("mlp.down");
    model.parallel_residual = spec.parallel_residual;
  }
  model.architecture = FittingFamily(model, std::span(&shape.modules, 1));
  return model;
}

ModelShape ShapeOf(const TrainConfig& c) {
  ModelShape shape = SpecOf(c).shape;
  shape.seq = c.seq_length;
  shape.vocab_multiple = c.make_vocab_size_divisible_by;
  const int64_t wanted = c.pad_vocab_size_to, tp = c.tensor_model_parallel_size;
  if (wanted > 0 && shape.PaddedVocab(tp) != wanted) shape.vocab_multiple = wanted / tp;
  return shape;
}

std::vector<ParameterSpec> GptSpecs(const TrainConfig& config) { return GptSpecs(ShapeOf(config)); }

Model ModelFacts(const TrainConfig& config) {
  return config.of_checkpoint ? config.of_checkpoint->facts : FactsOf(SpecOf(config));
}

uint64_t CountParameters(const std::vector<ParameterSpec>& specs) {
  uint64_t count = 0;
  for (const ParameterSpec& spec : specs) count += spec.shape.Volume();
  return count;
}

}  // namespace cairn
