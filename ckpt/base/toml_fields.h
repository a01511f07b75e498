// Strict TOML: each key of a file is taken or refused, and an error names the file and the line.
//
// Brings toml++: for the .cc files that bind keys to fields, not for headers.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include "ckpt/base/status.h"

namespace cairn {

// A key of a file and its value.
struct TomlField {
  std::string key;    // as the file has it
  std::string name;   // with dashes for underscores, as flags have them
  std::string where;  // "FILE:LINE"
  const toml::node& value;
};
using TakeTomlField = std::function<Status(const TomlField&)>;

// `origin`: the file's name, for messages. Errors: InvalidArgument "FILE:LINE: why".
Result<toml::table> ParseToml(std::string_view text, const std::string& origin);

// "FILE:LINE" of a value.
std::string TomlPlace(const std::string& origin, const toml::node& value);

// Calls `take` for each key of the table, in the order of the keys, up to the first error.
Status TakeTomlTable(const toml::table& table, const std::string& origin, const TakeTomlField& take);

// The same for a whole file whose tables, such as [model], only group keys.
Status TakeGroupedToml(std::string_view text, const std::string& origin, const TakeTomlField& take);

// "WHERE: unknown key 'purge_dayz'; did you mean 'purge_days'?", or `else_see` after the semicolon if none of
// `known` is near.
Status UnknownTomlKey(const TomlField& field, const std::vector<std::string>& known,
                      std::string_view else_see);

}  // namespace cairn
