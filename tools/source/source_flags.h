// The flags of verbs that read another system's checkpoint.
#pragma once

#include <CLI/CLI.hpp>

#include "convert/formats/formats.h"

namespace cairn {

// Adds --from, --allow and --replicas.
void AddSourceFlags(CLI::App& verb, OpenOptions& options);

}  // namespace cairn
