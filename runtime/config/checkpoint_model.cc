// Reading: the manifest's facts about the function (ckpt/model/model.h) become choices of a
// ModelSpec; the step's own tensors show which parameters and biases it has. At the end the spec must state
// the same function again: a fact that was not understood is refused by its name.
//
// Taking: all flags of the model get the checkpoint's values first. Each flag that was given is then tried by
// itself, together with the flags that mean the same. If it would make another model, it contradicts the
// checkpoint.

#include "runtime/config/checkpoint_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/base/json_facts.h"
#include "ckpt/base/split_text.h"
#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

using nlohmann::json;

Status ReadRotary(const Model& function, JsonFacts& of, ModelSpec& spec) {
  spec.rotary = {.base = of.Number(NameOf(&Model::rotary_base), 10000),
                 .percent = of.Number(NameOf(&Model::rotary_percent), 1),
                 .interleaved = of.Switch(NameOf(&Model::rotary_interleaved))};
  const json& scaling = function.rope_scaling;
  if (!scaling.is_null()) spec.rotary.scaling_json = scaling.dump();
  CAIRN_ASSIGN_OR_RETURN(
      spec.rotary.scaling,
      ReadRopeScaling(scaling, static_cast<double>(spec.shape.positions), spec.RotatedPairs()));
  return OkStatus();
}

void ReadWindow(const Model& function, JsonFacts& of, ModelSpec& spec) {
  if (function.sliding_window.is_null()) return;
  spec.window = of.Size(NameOf(&Model::sliding_window), kMaxModelSize);
  for (const json& type : function.layer_types) spec.windowed.push_back(type == "sliding_attention");
  spec.windowed.resize(spec.windowed.empty() ? 0 : spec.shape.layers);
}

// ---- Flags.

// Groups, separated by commas, of flags that decide one thing together.
constexpr std::string_view kFlagGroups =
    "num-layers,hidden-size,num-attention-heads,ffn-hidden-size,max-position-embeddings,vocab-size,"
    "untie-embeddings-and-output-weights,layernorm-epsilon,normalization,"
    "position-embedding-type use-rotary-position-embeddings,rotary-base,rotary-percent,"
    "rotary-interleaved,"
    "rope-scaling use-rope-scaling rope-scaling-factor rotary-seq-len-interpolation-factor,"
    "activation swiglu glu-activation squared-relu openai-gelu no-bias-gelu-fusion,"
    "group-query-attention num-query-groups,kv-channels,disable-bias-linear add-qkv-bias,qk-layernorm,"
    "embed-layernorm,gpt-j-residual,apply-residual-connection-post-layernorm";

void CopyFlag(std::string_view name, const TrainConfig& from, TrainConfig& to) {
  std::visit([&](auto field) { to.*field = from.*field; }, FindTrainFlag(name)->field);
}

// The values of the flags that come closest to the model; exact for everything that flags can express.
void SetFlags(const ModelSpec& spec, TrainConfig& c) {
  const ModelShape& shape = spec.shape;
  c.num_layers = static_cast<int>(shape.layers);
  c.hidden_size = static_cast<int>(shape.hidden);
  c.num_attention_heads = static_cast<int>(shape.heads);
  c.ffn_hidden_size = static_cast<int>(shape.ffn);
  c.max_position_embeddings = static_cast<int>(std::min<int64_t>(shape.positions, INT32_MAX));
  c.vocab_size = shape.vocab;
  c.untie_embeddings_and_output_weights = !shape.tied;
  c.layernorm_epsilon = spec.norm_epsilon;
  c.normalization = NameOf(spec.normalization);
  c.position_embedding_type =
      spec.position == Position::kLearned ? "learned_absolute" : NameOf(spec.position);
  c.rotary_base = spec.rotary.base;
  c.rotary_percent = spec.rotary.percent;
  c.rotary_interleaved = spec.rotary.interleaved;
  c.rope_scaling = spec.rotary.scaling_json;
  const bool gate = shape.IsGated();
  c.swiglu = gate && spec.activation == Activation::kSilu;
  c.glu_activation = gate && !c.swiglu ? "geglu" : "";
  c.activation = c.swiglu ? "" : NameOf(spec.activation);
  c.group_query_attention = shape.kv_heads != shape.heads;
  c.num_query_groups = c.group_query_attention ? static_cast<int>(shape.kv_heads) : 1;
  c.kv_channels = shape.QueryWidth() == shape.hidden ? 0 : static_cast<int>(shape.head_dim);
  c.disable_bias_linear = !shape.modules.HasBias("mlp.down");
  c.add_qkv_bias = shape.modules.HasBias("attention.query") && c.disable_bias_linear;
  c.qk_layernorm = shape.modules.Has("attention.query_norm");
  c.embed_layernorm = shape.modules.Has("embedding.norm");
  c.gpt_j_residual = spec.parallel_residual;
  c.apply_residual_connection_post_layernorm = spec.residual_behind_norm;
}

// For messages: the facts, and which parameters the model has.
json Describe(const ModelSpec& spec) {
  Model model = FactsOf(spec);
  model.architecture.reset();
  const Model function = FunctionOf(model);
  json facts = model;
  for (const ModelField& field : ModelFields())
    if (field.fallback) facts.emplace(field.name, function.*field.value);
  const DecoderModules& modules = spec.shape.modules;
  facts["embedding_norm"] = modules.Has("embedding.norm");
  facts["query_key_norm"] = modules.Has("attention.query_norm");
  facts["query_key_value_bias"] = modules.HasBias("attention.query");
  facts["attention_output_bias"] = modules.HasBias("attention.output");
  facts["mlp_bias"] = modules.HasBias("mlp.down");
  return facts;
}

// The given flags of a group, tried without the others.
Status CheckGroup(std::string_view flags, std::span<const std::string_view> given, const TrainConfig& asked,
                  const TrainConfig& taken, const std::string& step) {
  const std::vector<std::string_view> group = SplitText(flags, ' ');
  const TrainConfig defaults;
  TrainConfig tried = taken;
  std::vector<std::string> said;
  for (const std::string_view name : group) CopyFlag(name, defaults, tried);
  for (const std::string_view name : group) {
    if (std::ranges::find(given, name) == given.end()) continue;
    CopyFlag(name, asked, tried);
    said.push_back(FlagText(*FindTrainFlag(name), asked));
  }
  if (said.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(ModelSpec would, SpecOfFlags(tried));
  CAIRN_ASSIGN_OR_RETURN(ModelSpec is, SpecOfFlags(taken));
  would.rotary.scaling_json = is.rotary.scaling_json = "";  // one scaling has several spellings
  if (would == is) return OkStatus();
  const json there = Describe(is), wanted = Describe(would);
  std::vector<std::string> differences;
  for (const auto& [name, value] : wanted.items())
    if (there.value(name, json()) != value)
      differences.push_back(fmt::format("{} would be {}, but is {} in the checkpoint", name, value.dump(),
                                        there.value(name, json()).dump()));
  if (would.rotary.scaling != is.rotary.scaling) differences.push_back("rope_scaling would differ");
  return InvalidArgument("{}: the model of {} differs: {}; leave the flag out", fmt::join(said, " "), step,
                         fmt::join(differences, "; "));
}

}  // namespace

Result<CheckpointModel> ReadCheckpointModel(std::string step, Model facts,
                                            std::vector<std::string> of_layer) {
  CAIRN_RETURN_IF_ERROR(FunctionIsStated(facts).WithContext(step));
  CheckpointModel read{std::move(step), std::move(facts), std::move(of_layer), {}};
  const Model& model = read.facts;
  ModelSpec& spec = read.spec;
  Model function = FunctionOf(model);
  for (const auto size :
       {&Model::num_layers, &Model::hidden_size, &Model::ffn_hidden_size, &Model::vocab_size,
        &Model::max_position_embeddings, &Model::num_key_value_heads, &Model::head_dim})
    function.*size = model.*size;  // as stated: FunctionOf fills in what follows
  const json values = function;
  JsonFacts of("the model's ", values);
  const auto fill = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(spec.shape, ReadShape(function));
    if (spec.shape.positions == 0) spec.shape.positions = kMaxModelSize;
    spec.shape.modules = DecoderModules::Among({read.of_layer.begin(), read.of_layer.end()});
    spec.shape.tied = of.Switch(NameOf(&Model::tied_embeddings));
    CAIRN_ASSIGN_OR_RETURN(spec.normalization, NormalizationNamed(of.Text(NameOf(&Model::normalization)),
                                                                  "the model's normalization"));
    spec.norm_epsilon = of.Number(NameOf(&Model::layernorm_epsilon), 1e-5);
    CAIRN_ASSIGN_OR_RETURN(spec.position, PositionNamed(of.Text(NameOf(&Model::position_embedding)),
                                                        "the model's position_embedding"));
    CAIRN_ASSIGN_OR_RETURN(spec.activation,
                           ActivationNamed(of.Text(NameOf(&Model::activation)), "the model's activation"));
    if (spec.position == Position::kRotary) CAIRN_RETURN_IF_ERROR(ReadRotary(function, of, spec));
    spec.parallel_residual = of.Switch(NameOf(&Model::parallel_residual));
    spec.residual_behind_norm = of.Switch(NameOf(&Model::residual_post_layernorm));
    spec.attention_scale = of.Number(NameOf(&Model::attention_scale), 0);
    spec.attention_scale_by_layer = of.Switch(NameOf(&Model::attention_scale_by_layer));
    ReadWindow(function, of, spec);
    CAIRN_RETURN_IF_ERROR(of.status());
    return SameFunction(model, FactsOf(spec), "cairn train");
  };
  CAIRN_RETURN_IF_ERROR(fill().WithContext(read.step));
  return read;
}

Status CheckParameters(const CheckpointModel& model, const std::vector<ParameterSpec>& of_step) {
  std::map<std::string, Dims> wanted;
  for (const ParameterSpec& spec : GptSpecs(model.spec.shape)) wanted.emplace(spec.name, spec.shape);
  for (const ParameterSpec& spec : of_step) {
    const auto found = wanted.find(spec.name);
    if (found == wanted.end())
      return NotSupported("{}: cairn train has no tensor {} in this model", model.step, spec.name);
    if (!(found->second == spec.shape))
      return InvalidArgument("{}: tensor {} is {}; by the model in the manifest it would be {}", model.step,
                             spec.name, ToString(spec.shape), ToString(found->second));
    wanted.erase(found);
  }
  if (wanted.empty()) return OkStatus();
  return InvalidArgument("{}: tensor {} of the model is missing", model.step, wanted.begin()->first);
}

Status TakeModel(CheckpointModel model, std::span<const std::string_view> given, TrainConfig& config) {
  TrainConfig taken = config;
  for (const std::string_view group : SplitText(kFlagGroups, ','))
    for (const std::string_view name : SplitText(group, ' ')) CopyFlag(name, TrainConfig(), taken);
  SetFlags(model.spec, taken);
  const bool has_length = std::ranges::find(given, "seq-length") != given.end();
  if (!has_length) taken.seq_length = std::min(taken.seq_length, taken.positions());
  for (const std::string_view group : SplitText(kFlagGroups, ','))
    CAIRN_RETURN_IF_ERROR(CheckGroup(group, given, config, taken, model.step));
  taken.of_checkpoint = std::make_shared<const CheckpointModel>(std::move(model));
  config = std::move(taken);
  return OkStatus();
}

}  // namespace cairn
