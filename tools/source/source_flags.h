// The flags of verbs that read another system's checkpoint.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "ckpt/base/status.h"
#include "convert/formats/systems.h"

namespace cairn {

// Adds --from, --config, --allow, --true-vocab-size and --replicas. Notes go to stderr.
void AddSourceFlags(CLI::App& verb, OpenOptions& options);

// The same as JSON: {"from"?, "config"?, "allow"?: [GLOB], "replicas"?, "true_vocab_size"?}. Errors:
// InvalidArgument.
Result<OpenOptions> ParseSourceOptions(const nlohmann::json& said);

}  // namespace cairn
