// The contents of a torch.save file, as text and as JSON: its tree of values and its storages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "convert/torch/torch_file.h"

namespace cairn {

// One line per value, indented; long lists of numbers are abbreviated. `globs` choose tensors by their path;
// empty: all.
void PrintTorchTree(const std::string& path, const TorchFile& file, const std::vector<std::string>& globs,
                    bool storages);

nlohmann::ordered_json TorchTreeJson(const std::string& path, const TorchFile& file);

}  // namespace cairn
