// Sizes are bounded before anything is multiplied: products of two of them, and of boxes, cannot overflow or
// exhaust memory.

#include "ckpt/model/shape.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace cairn {
namespace {

constexpr int64_t kMaxLayers = 1 << 16;
constexpr int64_t kMaxHeadBoxes = 1 << 24;  // layers times heads

}  // namespace

Result<ModelShape> ReadShape(const nlohmann::json& model) {
  Status status;
  const auto read = [&](const char* name, int64_t fallback) -> int64_t {
    const auto found = model.find(name);
    const bool is_missing = found == model.end() || found->is_null();
    if (is_missing && fallback >= 0) return fallback;
    if (!is_missing && found->is_number_integer() && *found > 0 && *found <= kMaxModelSize)
      return found->get<int64_t>();
    if (status.ok())
      status = InvalidArgument("the model's {} is {}; it must be a positive integer, at most {}", name,
                               found == model.end() ? "missing" : found->dump(), kMaxModelSize);
    return 1;
  };
  ModelShape shape;
  shape.layers = read("num_layers", -1);
  shape.hidden = read("hidden_size", -1);
  shape.heads = read("num_attention_heads", -1);
  shape.vocab = read("vocab_size", -1);
  shape.kv_heads = read("num_key_value_heads", shape.heads);
  shape.head_dim = read("head_dim", std::max<int64_t>(1, shape.hidden / shape.heads));
  shape.ffn = read("ffn_hidden_size", 4 * shape.hidden);
  shape.positions = read("max_position_embeddings", 0);
  CAIRN_RETURN_IF_ERROR(status);
  if (model.value("head_dim", nlohmann::json()).is_null() && shape.hidden % shape.heads != 0)
    return InvalidArgument("the model's {} attention heads do not divide its hidden size {}", shape.heads,
                           shape.hidden);
  if (shape.heads % shape.kv_heads != 0)
    return InvalidArgument("the model's {} key and value heads do not divide its {} attention heads",
                           shape.kv_heads, shape.heads);
  if (shape.layers > kMaxLayers || shape.layers * shape.heads > kMaxHeadBoxes)
    return InvalidArgument("the model has {} layers of {} heads; is its description damaged?", shape.layers,
                           shape.heads);
  return shape;
}

GptTensors TensorsAmong(const std::set<std::string_view>& names) {
  const auto has = [&](std::string_view name) { return names.contains(name); };
  return {.positions = has("embedding.position.weight"),
          .position_offset = has("embedding.position_offset.weight"),
          .embedding_norm = has("embedding.norm.weight"),
          .norm_weight = has("final_norm.weight"),
          .norm_bias = has("final_norm.bias"),
          .query_key_value_bias = has("layers.0.attention.query.bias"),
          .query_key_norm = has("layers.0.attention.query_norm.weight"),
          .attention_output_bias = has("layers.0.attention.output.bias"),
          .gate = has("layers.0.mlp.gate.weight"),
          .mlp_bias = has("layers.0.mlp.down.bias")};
}

}  // namespace cairn
