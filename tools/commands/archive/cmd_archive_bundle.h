// `cairn archive bundle`, and what `run` and `plan` share with it.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/archive/policy/bundle_policy.h"
#include "tools/archive/policy/policy_run.h"
#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveBundleCommand(CLI::App& archive, Verb& verb);

// The events of bundles, printed unless `quiet`.
PolicyEvents PrintedBundling(bool quiet);

nlohmann::ordered_json BundlingJson(const BundlePlan& bundling);
void PrintBundling(const BundlePlan& bundling, const Policy& policy);

}  // namespace cairn
