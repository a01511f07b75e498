// The tensors of a training of a transformers model that no family's table describes, under the names of its
// files; or those of its files under the names that it has in memory.
#pragma once

#include <string>
#include <vector>

#include "ckpt/families/memory_names.h"
#include "convert/formats/hugging_face/config_mapping.h"

namespace cairn {

// Pure. `names`: the rules of the model's type; null: it has no others. `in_memory`: the names that are
// wanted. The source may have either; prefixes that all names have are taken off. Errors: InvalidArgument if
// names are unknown; NotFound naming missing tensors; Corrupt naming a tensor of another shape; NotSupported
// if a state's shape cannot be cut.
Result<ConfigMapping> MapByNames(const TensorTable& stored, const Manifest& training, const Model& model,
                                 const MemoryNames* names, bool in_memory,
                                 const std::vector<std::string>& allow);

}  // namespace cairn
