#include "tools/serve/state_table.h"

#include <set>

#include "ckpt/io/strict_json.h"

namespace cairn {
namespace {

Result<Role> RoleOf(const StateTensor& tensor, const DcpPlace& place) {
  if (place.role) return *place.role;
  if (place.training) return Role::kTraining;
  return RoleNamed(std::string_view(tensor.fqn).substr(tensor.fqn.rfind('.') + 1));
}

}  // namespace

DcpName DcpNameOf(const StateTensor& tensor) {
  return {tensor.fqn, PathTexts(tensor.path), tensor.entry.spec.shape.rank()};
}

std::vector<std::string> PathTexts(const nlohmann::json& path) {
  std::vector<std::string> texts;
  if (!path.is_array()) return texts;
  for (const nlohmann::json& part : path) {
    const nlohmann::json& text = part.is_object() ? part.value("text", nlohmann::json()) : part;
    texts.push_back(text.is_string() ? text.get<std::string>() : text.dump());
  }
  return texts;
}

Result<StateTensor> DescribedTensor(const nlohmann::json& described) {
  StateTensor tensor;
  tensor.fqn = described.value("fqn", "");
  tensor.path = described.value("path", nlohmann::json());
  const std::string type = described.value("dtype", "");
  const auto dtype = ParseDtype(type);
  if (!dtype) return Corrupt("tensor {}: the format does not have its type {}", tensor.fqn, type);
  tensor.entry.dtype = *dtype;
  const auto shape = described.value("shape", std::vector<uint64_t>());
  const bool named = !tensor.fqn.empty() && tensor.fqn.find('\0') == std::string::npos;
  if (!named || tensor.fqn.size() > UINT16_MAX || shape.size() > kMaxRank)
    return Corrupt("tensor {}: a step cannot hold its name or its shape", tensor.fqn);
  for (const uint64_t extent : shape) tensor.entry.spec.shape.push_back(extent);
  if (!CheckedBytes(tensor.entry.spec.shape, SizeOf(*dtype)))
    return Corrupt("tensor {}: it is larger than 2^63 bytes", tensor.fqn);
  return tensor;
}

void PlaceTensors(std::vector<StateTensor>& tensors, const std::vector<std::string>& others) {
  std::vector<DcpName> names;
  for (const StateTensor& tensor : tensors) names.push_back(DcpNameOf(tensor));
  std::vector<DcpName> all = names;
  for (const std::string& other : others) all.push_back({other});
  const std::vector<DcpPlace> places = PlaceDcpTensors(names, DcpOptimizersOf(all));
  std::set<std::pair<std::string, Role>> taken;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Result<Role> role = RoleOf(tensors[i], places[i]);
    TensorEntry& entry = tensors[i].entry;
    entry.spec.name = places[i].parameter;
    entry.role = role.ok() ? *role : Role::kWeight;
    const bool own = role.ok() && taken.emplace(entry.spec.name, entry.role).second;
    if (own) continue;
    entry.spec.name = tensors[i].fqn;
    entry.role = Role::kWeight;
    taken.emplace(entry.spec.name, entry.role);
  }
}

std::string EncodeTable(const std::vector<StateTensor>& tensors) {
  nlohmann::json rows = nlohmann::json::array();
  for (const StateTensor& tensor : tensors) {
    const Dims& shape = tensor.entry.spec.shape;
    rows.push_back({{"fqn", tensor.fqn},
                    {"path", tensor.path},
                    {"dtype", Name(tensor.entry.dtype)},
                    {"shape", std::vector<uint64_t>(shape.begin(), shape.end())},
                    {"name", tensor.entry.spec.name},
                    {"role", Name(tensor.entry.role)}});
  }
  return rows.dump();
}

Result<std::vector<StateTensor>> DecodeTable(std::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json rows, ParseStrictJson(bytes));
  std::vector<StateTensor> tensors;
  for (const nlohmann::json& row : rows) {
    if (!row.is_object()) return Corrupt("a tensor is not an object");
    CAIRN_ASSIGN_OR_RETURN(StateTensor tensor, DescribedTensor(row));
    tensor.entry.spec.name = row.value("name", "");
    CAIRN_ASSIGN_OR_RETURN(tensor.entry.role, RoleNamed(row.value("role", "")));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace cairn
