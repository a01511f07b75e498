#include "convert/foreign/shared_parameters.h"

#include <map>

namespace cairn {

std::vector<SecondName> SecondNames(const Manifest& manifest, const TensorTable& table) {
  const nlohmann::json shared = manifest.state.value("shared_params", nlohmann::json::object());
  if (shared.empty()) return {};
  std::map<std::string, ParameterSpec> held;
  for (const ParameterSpec& spec : table.Parameters()) held.emplace(spec.name, spec);
  std::vector<SecondName> names;
  for (const auto& [second, first] : shared.items()) {
    const auto spec = first.is_string() ? held.find(first.get<std::string>()) : held.end();
    if (spec == held.end() || held.contains(second)) continue;
    names.push_back({spec->second, spec->first});
    names.back().spec.name = second;
  }
  return names;
}

}  // namespace cairn
