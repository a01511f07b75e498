#include "convert/formats/megatron_model/megatron_sizes.h"

#include <algorithm>
#include <initializer_list>

#include "convert/formats/megatron_model/megatron_modules.h"

namespace cairn {
namespace {

// The first weight of a module, as a matrix.
const Dims* FirstShape(const MegatronShapes& shapes, std::string_view module) {
  for (const auto& [key, shape] : shapes) {
    const MegatronParameter parameter = FindMegatronParameter(key.second);
    if (parameter.module && !parameter.bias && parameter.module->name == module)
      return shape.rank() == 2 ? &shape : nullptr;
  }
  return nullptr;
}

bool SaysAny(const PyValue& args, std::initializer_list<const char*> names) {
  return std::ranges::any_of(names, [&](const char* name) {
    const PyValue* value = Find(args, name);
    return value && !value->is(PyKind::kNone);
  });
}

// A fused query_key_value has the query heads, and two heads for each group of them.
uint64_t GroupsShown(const PyValue& args, uint64_t rows, uint64_t hidden) {
  const auto heads = AsInt(Find(args, "num_attention_heads")), given = AsInt(Find(args, "kv_channels"));
  if (!heads || *heads <= 0 || hidden % static_cast<uint64_t>(*heads) != 0) return 0;
  const uint64_t count = static_cast<uint64_t>(*heads);
  const uint64_t head = given && *given > 0 ? static_cast<uint64_t>(*given) : hidden / count;
  if (head == 0 || rows % head != 0 || rows / head <= count || (rows / head - count) % 2 != 0) return 0;
  return (rows / head - count) / 2;
}

}  // namespace

Result<std::map<std::string, uint64_t>> SizesShown(const PyValue& args, const MegatronShapes& shapes,
                                                   int tp_size) {
  std::map<std::string, uint64_t> shown;
  const auto tp = static_cast<uint64_t>(tp_size);
  uint64_t layers = 0;
  for (const auto& [key, shape] : shapes)
    if (key.first >= 0 && key.first != kAfterLayers)
      layers = std::max(layers, static_cast<uint64_t>(key.first) + 1);
  shown["num_layers"] = layers;
  const Dims* words = FirstShape(shapes, "word_embeddings");
  if (words) {
    shown["padded_vocab_size"] = (*words)[0] * tp;
    shown["hidden_size"] = (*words)[1];
  }
  const Dims* positions = FirstShape(shapes, "position_embeddings");
  if (positions) shown["max_position_embeddings"] = (*positions)[0];
  if (!positions && !SaysAny(args, {"position_embedding_type", "use_rotary_position_embeddings", "alibi",
                                    "add_position_embedding"}))
    return NotFound("the checkpoint's args have no position_embedding_type, and its tensors do not show it");
  const Dims* up = FirstShape(shapes, "mlp.dense_h_to_4h");
  const Dims* down = FirstShape(shapes, "mlp.dense_4h_to_h");
  if (up && down) {
    shown["ffn_hidden_size"] = (*down)[1] * tp;
    if ((*up)[0] == 2 * (*down)[1] && !SaysAny(args, {"swiglu", "glu_activation", "gated_linear_unit"}))
      return NotFound("its MLP is gated, but the checkpoint's args have neither swiglu nor glu_activation");
  }
  if (const Dims* qkv = FirstShape(shapes, "self_attention.query_key_value"))
    if (const uint64_t groups = GroupsShown(args, (*qkv)[0] * tp, (*qkv)[1]); groups > 0)
      shown["num_key_value_heads"] = groups;
  return shown;
}

}  // namespace cairn
