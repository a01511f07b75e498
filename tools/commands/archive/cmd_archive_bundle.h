// `cairn archive bundle`, and what `run` and `plan` share with it.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/archive/policy/bundle_policy.h"
#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveBundleCommand(CLI::App& archive, Verb& verb);

// Makes the bundles that are due, and tells of each unless `quiet`. Returns what went wrong, one line each.
// Requires the store's lock.
Result<std::vector<std::string>> BundleBy(FileSystem& fs, const Policy& policy, bool all, bool quiet);

nlohmann::ordered_json BundlingJson(const BundlePlan& bundling);
void PrintBundling(const BundlePlan& bundling, const Policy& policy);

}  // namespace cairn
