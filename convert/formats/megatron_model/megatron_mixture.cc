#include "convert/formats/megatron_model/megatron_mixture.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ckpt/families/expand.h"
#include "convert/formats/megatron_model/megatron_function.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxLayersListed = 1 << 16;

constexpr std::string_view kChangingMixtures[] = {
    "moe_apply_probs_on_input",        "moe_expert_capacity_factor",
    "moe_expert_rank_capacity_factor", "moe_latent_size",
    "moe_mlp_glu_interleave_size",     "moe_router_force_biased",
    "moe_router_force_load_balancing", "moe_router_quantile_balancing_ema",
    "moe_router_topk_limited_devices", "moe_shared_expert_glu_interleave_size"};

bool IsSet(const json& args, const char* name) { return !IsUnset(Argument(args, name)); }
uint64_t LayersOf(const Model& model) {
  return std::min(static_cast<uint64_t>(IntOf(model.num_layers)), kMaxLayersListed);
}

// The layers without a 1 in Megatron's pattern, or all but every N-th.
json DenseLayers(const json& frequency, uint64_t layers) {
  json dense = json::array();
  for (uint64_t i = 0; i < layers; ++i) {
    const bool listed = frequency.is_array() && (i >= frequency.size() || IsUnset(frequency[i]));
    const bool counted = frequency.is_number_integer() && frequency > 0 && i % frequency.get<uint64_t>() != 0;
    if (listed || counted) dense.push_back(i);
  }
  return dense;
}

// A group's score in Megatron is the sum of its topk / group_topk best experts. In DeepSeek-V2 it is the best
// one, in V3 that of the two best.
bool GroupsAreDeepSeeks(const json& topk, const json& group_topk, bool corrected) {
  return topk.is_number_integer() && group_topk.is_number_integer() && group_topk > 0 &&
         topk.get<int64_t>() / group_topk.get<int64_t>() == (corrected ? 2 : 1);
}

}  // namespace

void ReadRouter(const json& args, Model& model) {
  if (model.num_experts.is_null()) return;
  const json score = Or(Argument(args, "moe_router_score_function"), "softmax"),
             topk = Or(Argument(args, "moe_router_topk"), 2),
             group_topk = Argument(args, "moe_router_group_topk");
  const bool sigmoid = score == "sigmoid", corrected = IsSet(args, "moe_router_enable_expert_bias"),
             scores_all = sigmoid || IsSet(args, "moe_router_pre_softmax"), grouped = !IsUnset(group_topk);
  model.num_experts_per_token = topk;
  model.router_score = score;
  model.router_normalizes = sigmoid ? topk != 1 : !scores_all;
  model.router_method = corrected ? "noaux_tc" : grouped ? "group_limited_greedy" : "greedy";
  const json scale = Argument(args, "moe_router_topk_scaling_factor");
  model.router_scale = IsUnset(scale) ? json(1.0) : scale;  // transformers takes no integer
  if (grouped) {
    model.router_groups = Argument(args, "moe_router_num_groups");
    model.router_groups_per_token = group_topk;
    if (!scores_all || !GroupsAreDeepSeeks(topk, group_topk, corrected))
      model.other["args.moe_router_group_topk"] = group_topk;
  }
  const json balancing = Argument(args, "moe_router_load_balancing_type");
  if (balancing == "sinkhorn" || balancing == json::array({"sinkhorn"}))
    model.other["args.moe_router_load_balancing_type"] = balancing;
  json dense = DenseLayers(Argument(args, "moe_layer_freq"), LayersOf(model));
  if (dense.empty())
    model.ffn_hidden_size = nullptr;  // no layer has this width
  else
    model.dense_layers = std::move(dense);
}

void AddRouterArguments(const Model& function, json& args) {
  if (function.num_experts.is_null()) return;
  const json& scale = function.router_scale;
  args["moe_router_topk"] = function.num_experts_per_token;
  args["moe_router_score_function"] = function.router_score;
  args["moe_router_pre_softmax"] = function.router_score == "softmax" && function.router_normalizes == false;
  args["moe_router_topk_scaling_factor"] = scale == 1 ? json() : scale;
  args["moe_router_num_groups"] = function.router_groups;
  args["moe_router_group_topk"] = function.router_groups_per_token;
  args["moe_router_enable_expert_bias"] = function.router_method == "noaux_tc";
  args["moe_layer_freq"] = 1;
  if (function.dense_layers.empty()) return;
  json mixtures = json::array();
  const uint64_t layers = std::min(args.value("num_layers", uint64_t{0}), kMaxLayersListed);
  for (uint64_t i = 0; i < layers; ++i)
    mixtures.push_back(Holds(kMixture, function, static_cast<int>(i)) ? 1 : 0);
  args["moe_layer_freq"] = std::move(mixtures);
}

bool ChangesMixtures(std::string_view argument) {
  return std::ranges::find(kChangingMixtures, argument) != std::end(kChangingMixtures);
}

DecoderModules LayerByLayer(const DecoderModules& dense, const json& args, const Model& model) {
  return dense.With(
      {.layers = model.dense_layers.empty() ? 1 : LayersOf(model),
       .latent = !model.kv_lora_rank.is_null(),
       .query_down = !model.q_lora_rank.is_null(),
       .latent_norms = IsSet(args, "qk_layernorm"),
       .is_mixture = [&](uint64_t layer) { return Holds(kMixture, model, static_cast<int>(layer)); },
       .expert_bias = dense.HasBias("mlp.down"),
       .router_correction = IsSet(args, "moe_router_enable_expert_bias"),
       .shared_expert = !model.shared_expert_ffn_hidden_size.is_null(),
       .shared_gate = IsSet(args, "moe_shared_expert_gate"),
       .mtp_layers = std::min(static_cast<uint64_t>(IntOf(model.mtp_layers)), kMaxLayersListed)});
}

}  // namespace cairn
