// JSON from untrusted files: no duplicate keys, no nesting beyond what our files or another system's need, no
// trailing text.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "ckpt/io/file_system.h"

namespace cairn {

// Errors: Corrupt saying what and where.
Result<nlohmann::json> ParseStrictJson(std::string_view text, int max_depth = 16);

// The same for an object with a member `rows`, an object of very many members: each goes to `row`, one after
// another, and none is kept; of two with one key `row` gets both. Errors: also those of `row`.
using JsonRow = std::function<Status(std::string key, nlohmann::json value)>;
Result<nlohmann::json> ParseJsonRows(std::string_view text, std::string_view rows, const JsonRow& row);

// A file that holds one object. Errors: Corrupt and NotSupported (larger than `max_bytes`) naming the file;
// NotFound.
Result<nlohmann::json> ReadJsonObject(FileSystem& fs, const std::string& path, uint64_t max_bytes);

}  // namespace cairn
