#include "convert/formats/megatron_model/megatron_latent.h"

#include "convert/formats/megatron_model/megatron_function.h"

namespace cairn {
namespace {

using nlohmann::json;

// Megatron's argument, its name in the model, and MLATransformerConfig's default.
template <typename Number>
struct Setting {
  const char* argument;
  const char* name;
  Number fallback;
};
constexpr Setting<int> kSizes[] = {{"kv_lora_rank", "kv_lora_rank", 512},
                                   {"qk_head_dim", "qk_nope_head_dim", 128},
                                   {"qk_pos_emb_head_dim", "qk_rope_head_dim", 64},
                                   {"v_head_dim", "v_head_dim", 128}};
// Yarn, whose names are those of transformers' rope_scaling.
constexpr Setting<double> kYarn[] = {
    {"rotary_scaling_factor", "factor", 40},
    {"original_max_position_embeddings", "original_max_position_embeddings", 4096},
    {"beta_fast", "beta_fast", 32},
    {"beta_slow", "beta_slow", 1},
    {"mscale", "mscale", 1},
    {"mscale_all_dim", "mscale_all_dim", 0}};

json GivenOr(const json& object, const char* name, const json& fallback) {
  const json value = object.value(name, json());
  return value.is_null() ? fallback : value;
}

// Sums of such sizes do not overflow.
bool IsSmall(const json& size) { return size.is_number_integer() && size > 0 && size < kMaxModelSize; }

}  // namespace

bool IsLatent(const json& args) { return !IsUnset(args.value("multi_latent_attention", json())); }

void ReadLatentAttention(const json& args, json& facts) {
  if (!IsLatent(args)) return;
  for (const auto& size : kSizes) facts[size.name] = GivenOr(args, size.argument, size.fallback);
  if (const json rank = args.value("q_lora_rank", json()); !IsUnset(rank)) facts["q_lora_rank"] = rank;
  const json &plain = facts["qk_nope_head_dim"], &rotated = facts["qk_rope_head_dim"];
  if (IsSmall(plain) && IsSmall(rotated)) facts["head_dim"] = plain.get<int64_t>() + rotated.get<int64_t>();
  facts["num_key_value_heads"] = facts.value("num_attention_heads", json());
  if (const json positions = args.value("position_embedding_type", json()); positions == "learned_absolute")
    facts["other"]["args.position_embedding_type"] = positions;
  facts["position_embedding"] = "rope";
  facts["rotary_base"] = GivenOr(args, "rotary_base", 10000);
  facts["rotary_interleaved"] = true;
  facts.erase("rope_scaling");
  const json type = GivenOr(args, "rope_type", "yarn");
  if (type == "rope") return;
  facts.erase("rotary_percent");
  json& scaling = facts["rope_scaling"] = {{"rope_type", type}};
  for (const auto& value : kYarn) scaling[value.name] = GivenOr(args, value.argument, value.fallback);
}

void AddLatentSizes(const ModelShape& shape, json& args) {
  if (shape.key_value_rank == 0) return;
  args["multi_latent_attention"] = true;
  args["q_lora_rank"] = shape.query_rank > 0 ? json(shape.query_rank) : json();
  args["kv_lora_rank"] = shape.key_value_rank;
  args["qk_head_dim"] = shape.UnrotatedDim();
  args["qk_pos_emb_head_dim"] = shape.rotated_dim;
  args["v_head_dim"] = shape.ValueHeadDim();
  args["group_query_attention"] = false;
}

void AddLatentArguments(const json& function, json& args) {
  if (!IsLatent(args)) return;
  args["rotary_interleaved"] = false;  // Megatron refuses true
  const json& scaling = function["rope_scaling"];
  const bool yarn = scaling.is_object() && scaling.value("rope_type", "") == "yarn";
  args["rope_type"] = yarn ? "yarn" : "rope";
  args["rotary_scaling_factor"] = 1.0;
  for (const auto& value : kYarn)
    if (yarn) args[value.argument] = GivenOr(scaling, value.name, value.fallback);
}

}  // namespace cairn
