// What `cairn reshape` and `cairn convert --to native` have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "convert/reshape.h"
#include "tools/verb.h"

namespace cairn {

struct TopologyFlags {
  std::optional<int> tp, pp, dp, zero;

  bool any() const { return tp || pp || dp || zero; }
  // What is left out is the source's.
  Topology Of(const Topology& source) const;
};

// Adds --tp, --pp, --dp and --zero.
void AddTopologyFlags(CLI::App& verb, TopologyFlags& flags);

// Reshapes and reports. Or says what it would take, with `dry_run`.
Result<int> RunReshape(CheckpointSource& source, const std::string& target, const Topology& topology,
                       const StepBuilderOptions& writer, bool dry_run, bool json);

}  // namespace cairn
