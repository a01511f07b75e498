// `cairn archive plan`, `prune`, `schedule`, and `run --policy`.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddArchivePolicyCommands(CLI::App& archive, Verb& verb);

// Does what the policy asks for now, and reports it in the policy's status file.
Result<int> RunByPolicy(const std::string& policy_path, bool dry_run, bool json);

}  // namespace cairn
