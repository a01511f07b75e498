// How a checkpoint is written in another system's format: options, and a plan of files. The table of all
// formats is convert/formats/systems.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/foreign/stored_target.h"

namespace cairn {

struct TargetOptions {
  Topology topology;
  std::optional<Dtype> dtype;    // of the weights; nothing: as they are stored
  bool local_spec = false;       // names of Megatron-Core's own layers, not of Transformer Engine's
  int param_groups = 0;          // of the optimizer: 1 of all, 2 of matrices and of vectors; 0: the source's
  bool allow_optimizer = false;  // what the format cannot hold of the optimizer's state may be left out
};

struct TargetFiles {
  StoredTarget target;
  std::string directory;           // below the result's: what the reader opens; empty: the result itself
  std::vector<std::string> notes;  // what could not be carried, for the user
};

}  // namespace cairn
