#include "convert/formats/deepspeed/model_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "convert/torch/tensor_walk.h"

namespace cairn {

std::vector<NamedShape> ShapesIn(const PyValue* shapes) {
  std::vector<NamedShape> found;
  for (size_t i = 0; shapes && i + 1 < shapes->items.size(); i += 2)
    found.push_back({KeyText(*shapes->items[i]), AsDims(shapes->items[i + 1])});
  return found;
}

std::vector<std::vector<NamedShape>> ParamShapesOf(const PyValue& root) {
  std::vector<std::vector<NamedShape>> groups;
  const PyValue* shapes = Find(root, "param_shapes");
  for (size_t g = 0; const PyValue* group = ItemOf(shapes, g); ++g) groups.push_back(ShapesIn(group));
  return groups;
}

std::set<std::string> PlaceholdersOf(const PyValue& root) {
  std::set<std::string> names;
  const auto add = [&](const std::vector<NamedShape>& entries) {
    for (const NamedShape& entry : entries) names.insert(entry.name);
  };
  for (const auto& group : ParamShapesOf(root)) add(group);
  add(ShapesIn(FindKind(root, "frozen_param_shapes", PyKind::kDict)));
  add(ShapesIn(FindKind(root, "shared_params", PyKind::kDict)));
  return names;
}

std::set<std::string> BufferNamesOf(const PyValue& root) {
  std::set<std::string> names;
  if (const PyValue* buffers = Find(root, "buffer_names"))
    for (const PyValue* name : buffers->items) names.insert(KeyText(*name));
  return names;
}

bool IsConfigured(const PyValue& root, const char* setting) {
  const PyValue* config = FindKind(root, "ds_config", PyKind::kDict);
  return config && AsInt(Find(*config, setting)).value_or(0) != 0;
}

uint64_t OriginalVocabulary(const PyValue& root) {
  int64_t vocabulary = 0;
  for (const char* info : {"checkpoint_info", "universal_checkpoint_info"})
    if (const PyValue* found = Find(root, info))
      vocabulary = std::max<int64_t>(0, AsInt(Find(*found, "original_vocab_size")).value_or(0));
  return static_cast<uint64_t>(vocabulary);
}

void PutLossScale(const PyValue& optimizer, const PyValue* scaler, nlohmann::json& state) {
  const auto scale = scaler ? AsNumber(Find(*scaler, "cur_scale")) : std::nullopt;
  if (!scale) return;
  state["loss_scale"] = *scale;
  state["dynamic_loss_scale"] = AsInt(Find(optimizer, "dynamic_loss_scale")).value_or(0) != 0;
}

}  // namespace cairn
