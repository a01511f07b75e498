#include "convert/architecture.h"

#include <unordered_map>

#include "convert/architectures/gpt2.h"

namespace cairn {
namespace {

using nlohmann::json;

struct Architecture {
  std::string_view name;
  Result<ForeignModel> (*hugging_face)(const json& model, Dtype dtype);
};

// One row an architecture: add yours here.
constexpr Architecture kArchitectures[] = {{"gpt2", Gpt2HuggingFace}};

}  // namespace

Result<ForeignModel> HuggingFaceModel(const json& model, Dtype dtype) {
  const json name = model.value("architecture", json());
  for (const Architecture& row : kArchitectures)
    if (name == row.name) return row.hugging_face(model, dtype);
  return NotSupported(
      "architecture {} has no Hugging Face form here; --format safetensors keeps canonical names",
      name.dump());
}

ForeignModel CanonicalModel(const std::vector<ParameterSpec>& parameters) {
  ForeignModel model;
  for (const ParameterSpec& spec : parameters)
    model.tensors.push_back({spec.name, spec.shape, {{spec.name, Box::Whole(spec.shape), false}}});
  return model;
}

Status CheckAgainst(const ForeignModel& model, const std::vector<ParameterSpec>& parameters) {
  std::unordered_map<std::string_view, const ParameterSpec*> unused;
  for (const ParameterSpec& spec : parameters) unused.emplace(spec.name, &spec);
  for (const ForeignTensor& tensor : model.tensors) {
    for (const ForeignPart& part : tensor.parts) {
      const auto found = unused.find(part.parameter);
      if (found == unused.end())
        return Corrupt("tensor {} needs {}, which the checkpoint does not have", tensor.name, part.parameter);
      Dims shape = part.box.extent;
      if (part.transpose) std::swap(shape[0], shape[1]);
      if (!(shape == found->second->shape))
        return Corrupt("tensor {} has shape {}, the manifest's model makes it {}", part.parameter,
                       ToString(found->second->shape), ToString(shape));
      unused.erase(found);
    }
  }
  if (!unused.empty()) return Corrupt("tensor {} has no place in the target format", unused.begin()->first);
  return OkStatus();
}

const json* ModelFields::Find(const char* name, const char* type, bool (json::*is)() const noexcept) {
  const auto found = model_.find(name);
  if (found != model_.end() && ((*found).*is)()) return &*found;
  if (status_.ok())
    status_ = InvalidArgument("the manifest's model has no field {} that is a {}", name, type);
  return nullptr;
}

uint64_t ModelFields::Positive(const char* name) {
  const json* value = Find(name, "positive integer", &json::is_number_integer);
  if (value != nullptr && value->get<int64_t>() > 0) return value->get<uint64_t>();
  if (status_.ok())
    status_ = InvalidArgument("the manifest's model has {} {}; it must be positive", name, value->dump());
  return 1;
}

double ModelFields::Number(const char* name) {
  const json* value = Find(name, "number", &json::is_number);
  return value == nullptr ? 0 : value->get<double>();
}

bool ModelFields::Flag(const char* name) {
  const json* value = Find(name, "boolean", &json::is_boolean);
  return value != nullptr && value->get<bool>();
}

json ModelFields::Optional(const char* name) const { return model_.value(name, json()); }

}  // namespace cairn
