#include "ckpt/base/toml_fields.h"

#include <algorithm>

#include "ckpt/base/nearest_name.h"

namespace cairn {
namespace {

Status TakeTable(const toml::table& table, const std::string& origin, bool grouped,
                 const TakeTomlField& take) {
  for (const auto& [key, value] : table) {
    if (grouped && value.is_table()) {
      CAIRN_RETURN_IF_ERROR(TakeTable(*value.as_table(), origin, grouped, take));
      continue;
    }
    std::string name(key.str());
    std::replace(name.begin(), name.end(), '_', '-');
    CAIRN_RETURN_IF_ERROR(take({std::string(key.str()), std::move(name), TomlPlace(origin, value), value}));
  }
  return OkStatus();
}

}  // namespace

Result<toml::table> ParseToml(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    return InvalidArgument("{}:{}: {}", origin, error.source().begin.line, error.description());
  }
}

std::string TomlPlace(const std::string& origin, const toml::node& value) {
  return fmt::format("{}:{}", origin, value.source().begin.line);
}

Status TakeTomlTable(const toml::table& table, const std::string& origin, const TakeTomlField& take) {
  return TakeTable(table, origin, /*grouped=*/false, take);
}

Status TakeGroupedToml(std::string_view text, const std::string& origin, const TakeTomlField& take) {
  CAIRN_ASSIGN_OR_RETURN(const toml::table table, ParseToml(text, origin));
  return TakeTable(table, origin, /*grouped=*/true, take);
}

Status UnknownTomlKey(const TomlField& field, const std::vector<std::string>& known,
                      std::string_view else_see) {
  const std::string nearest = NearestName(known, field.key);
  return InvalidArgument(
      "{}: unknown key '{}'; {}", field.where, field.key,
      nearest.empty() ? std::string(else_see) : fmt::format("did you mean '{}'?", nearest));
}

}  // namespace cairn
