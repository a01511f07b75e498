#include "convert/formats/megatron_model/megatron_latent.h"

#include "convert/formats/megatron_model/megatron_function.h"

namespace cairn {
namespace {

using nlohmann::json;

// Megatron's argument, its place in the model, and MLATransformerConfig's default.
template <typename Place, typename Number>
struct Setting {
  const char* argument;
  Place place;
  Number fallback;
};
constexpr Setting<json ModelValues::*, int> kSizes[] = {{"kv_lora_rank", &Model::kv_lora_rank, 512},
                                                        {"qk_head_dim", &Model::qk_nope_head_dim, 128},
                                                        {"qk_pos_emb_head_dim", &Model::qk_rope_head_dim, 64},
                                                        {"v_head_dim", &Model::v_head_dim, 128}};
// Yarn, whose names are those of transformers' rope_scaling.
constexpr Setting<const char*, double> kYarn[] = {
    {"rotary_scaling_factor", "factor", 40},
    {"original_max_position_embeddings", "original_max_position_embeddings", 4096},
    {"beta_fast", "beta_fast", 32},
    {"beta_slow", "beta_slow", 1},
    {"mscale", "mscale", 1},
    {"mscale_all_dim", "mscale_all_dim", 0}};

// Sums of such sizes do not overflow.
bool IsSmall(const json& size) { return size.is_number_integer() && size > 0 && size < kMaxModelSize; }

}  // namespace

bool IsLatent(const json& args) { return !IsUnset(Argument(args, "multi_latent_attention")); }

void ReadLatentAttention(const json& args, Model& model) {
  if (!IsLatent(args)) return;
  for (const auto& size : kSizes) model.*size.place = Or(Argument(args, size.argument), size.fallback);
  if (const json rank = Argument(args, "q_lora_rank"); !IsUnset(rank)) model.q_lora_rank = rank;
  const json &plain = model.qk_nope_head_dim, &rotated = model.qk_rope_head_dim;
  if (IsSmall(plain) && IsSmall(rotated)) model.head_dim = plain.get<int64_t>() + rotated.get<int64_t>();
  model.num_key_value_heads = model.num_attention_heads;
  if (const json positions = Argument(args, "position_embedding_type"); positions == "learned_absolute")
    model.other["args.position_embedding_type"] = positions;
  model.position_embedding = "rope";
  model.rotary_base = Or(Argument(args, "rotary_base"), 10000);
  model.rotary_interleaved = true;
  model.rope_scaling = nullptr;
  const json type = Or(Argument(args, "rope_type"), "yarn");
  if (type == "rope") return;
  model.rotary_percent = nullptr;
  json& scaling = model.rope_scaling = {{"rope_type", type}};
  for (const auto& value : kYarn) scaling[value.place] = Or(Argument(args, value.argument), value.fallback);
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

void AddLatentArguments(const Model& function, json& args) {
  if (!IsLatent(args)) return;
  args["rotary_interleaved"] = false;  // Megatron refuses true
  const json& scaling = function.rope_scaling;
  const bool yarn = scaling.is_object() && scaling.value("rope_type", "") == "yarn";
  args["rope_type"] = yarn ? "yarn" : "rope";
  args["rotary_scaling_factor"] = 1.0;
  for (const auto& value : kYarn)
    if (yarn) args[value.argument] = Or(Argument(scaling, value.place), value.fallback);
}

}  // namespace cairn
