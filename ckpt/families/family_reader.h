// The file of a family (docs/adding-a-family.md) as its table.
//
// Errors name the file and the key: InvalidArgument for one that is unknown, missing or ill-typed, and for a
// table that could not store a model.
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/families/family.h"

namespace cairn {

// `own` is the content of `file`, which is "like" the family whose content is `base`. Returns the content of
// a file that says the same by itself: without the rows that `own` drops, with its rows in place of those of
// the same name or as new ones; its other keys replace those of `base`.
Result<nlohmann::json> DerivedFamily(const std::string& file, const nlohmann::json& base,
                                     const nlohmann::json& own);

// `content` says everything by itself.
Result<Family> ReadFamily(const std::string& file, const nlohmann::json& content);

}  // namespace cairn
