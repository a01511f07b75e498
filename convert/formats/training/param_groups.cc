#include "convert/formats/training/param_groups.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "convert/formats/training/state_places.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr size_t kMaxItems = 16;  // of a value

template <typename T>
double LoadNumber(const char* bytes) {
  T value{};
  std::memcpy(&value, bytes, sizeof(T));
  return static_cast<double>(value);
}

// `path`: of the keys above `state`, each with a dot.
Status AddStates(const PyValue& state, const std::string& path, const std::string& of,
                 OptimizerStates& states) {
  for (size_t i = 0; i + 1 < state.items.size(); i += 2) {
    const std::string key = path + KeyText(*state.items[i]);
    const PyValue* value = state.items[i + 1];
    const auto role = StateRole(key);
    if (value->is(PyKind::kNone)) continue;
    if (value->is(PyKind::kDict) && path.empty()) {  // as bitsandbytes keeps its blocks
      CAIRN_RETURN_IF_ERROR(AddStates(*value, key + ".", of, states));
      continue;
    }
    if (!role) return NotSupported("{} of {} is not an optimizer's state", key, of);
    if (*role == Role::kStep)
      states.step = value;
    else if (value->is(PyKind::kTensor))
      states.tensors.emplace_back(*role, value->tensor);
    else
      return NotSupported("{} of {} is not a tensor", key, of);
  }
  return OkStatus();
}

}  // namespace

std::optional<nlohmann::json> PlainJson(const PyValue& value) {
  switch (value.kind) {
    case PyKind::kNone:
      return nlohmann::json();
    case PyKind::kBool:
      return value.integer != 0;
    case PyKind::kInt:
      return value.integer;
    case PyKind::kFloat:
      return value.real;
    case PyKind::kStr:
      return std::string(value.text);
    case PyKind::kList:
    case PyKind::kTuple: {
      if (value.items.size() > kMaxItems) return std::nullopt;
      nlohmann::json list = nlohmann::json::array();
      for (const PyValue* item : value.items) {
        if (item->is(PyKind::kList) || item->is(PyKind::kTuple))
          return std::nullopt;  // one level is all there is
        const auto plain = PlainJson(*item);
        if (!plain) return std::nullopt;
        list.push_back(*plain);
      }
      return list;
    }
    default:
      return std::nullopt;
  }
}

nlohmann::json ParamGroupsOf(const PyValue* groups) {
  nlohmann::json found = nlohmann::json::array();
  if (!groups || !groups->is(PyKind::kList) || groups->items.size() > kMaxParamGroups) return found;
  for (const PyValue* group : groups->items) {
    nlohmann::json plain = nlohmann::json::object();
    for (size_t i = 0; group->is(PyKind::kDict) && i + 1 < group->items.size(); i += 2) {
      const std::string key = KeyText(*group->items[i]);
      if (key == "params") continue;
      if (const auto value = PlainJson(*group->items[i + 1])) plain[key] = *value;
    }
    found.push_back(std::move(plain));
  }
  return found;
}

Result<std::optional<double>> ScalarOf(FileSystem& fs, const TorchFile& file, const PyValue* value) {
  if (const auto number = AsNumber(value)) return number;
  const TensorRef* tensor = value && value->is(PyKind::kTensor) ? value->tensor : nullptr;
  if (!tensor || !tensor->storage || tensor->shape.Volume() != 1 || !tensor->type->dtype)
    return std::optional<double>();
  CAIRN_ASSIGN_OR_RETURN(const uint64_t at, file.Locate(*tensor));
  CAIRN_ASSIGN_OR_RETURN(const auto opened, fs.OpenForRead(file.path()));
  std::array<char, 8> bytes{};
  const uint64_t size = SizeOf(*tensor->type->dtype);
  CAIRN_RETURN_IF_ERROR(
      opened->ReadAt(at + tensor->offset * size, std::as_writable_bytes(std::span(bytes).first(size))));
  switch (*tensor->type->dtype) {
    case Dtype::kF32:
      return std::optional(LoadNumber<float>(bytes.data()));
    case Dtype::kF64:
      return std::optional(LoadNumber<double>(bytes.data()));
    case Dtype::kI32:
      return std::optional(LoadNumber<int32_t>(bytes.data()));
    case Dtype::kI64:
      return std::optional(LoadNumber<int64_t>(bytes.data()));
    default:
      return std::optional<double>();
  }
}

Result<OptimizerStates> StatesOf(const PyValue& state, const std::string& of) {
  OptimizerStates states;
  if (!state.is(PyKind::kDict)) return NotSupported("the state of {} is not a dict", of);
  CAIRN_RETURN_IF_ERROR(AddStates(state, "", of, states));
  std::ranges::sort(states.tensors);
  return states;
}

}  // namespace cairn
