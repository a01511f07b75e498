// Writes `.metadata` of torch.distributed.checkpoint: which chunk of which tensor is which item of which
// file. The inverse of dcp_index.h, which names the sources of the format.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convert/foreign/stored_target.h"

namespace cairn {

// A tensor or any other value, as .metadata has it.
struct DcpEntry {
  std::string name;                  // fully qualified
  std::vector<nlohmann::json> path;  // keys, and numbers of list items; empty: not flattened by a planner
  std::optional<Dtype> dtype;        // nothing: not a tensor
  Dims shape;
  std::vector<std::pair<Box, uint32_t>> chunks;  // and the zip that each is; one zip if it is not a tensor
};

// The file's bytes. The target's zips must have their places; their files lie beside .metadata.
std::string DcpMetadata(const std::vector<DcpEntry>& entries, const StoredTarget& target);

}  // namespace cairn
