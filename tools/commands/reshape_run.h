// Shared by `cairn reshape` and `cairn convert --to native`.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <vector>

#include "tools/commands/transfer_run.h"

namespace cairn {

struct TopologyFlags {
  std::optional<int> tp, pp, dp, zero, virtual_stages, ep, etp;
  std::vector<int> layers_per_stage;
  bool embedding_counts = false;  // as a layer of the first stage
  bool loss_counts = false;       // as a layer of the last one

  bool any() const;
  // Sizes without a flag are the source's; those of experts only if they divide the ranks of a stage, else
  // EP is 1 and ETP is TP. Errors: InvalidArgument for impossible sizes.
  Result<Topology> Of(const Manifest& source) const;
};

// Adds --tp, --pp, --dp, --zero, --ep, --etp and the flags that assign layers to stages.
void AddTopologyFlags(CLI::App& verb, TopologyFlags& flags);

struct ReshapeFlags {
  TransferFlags transfer;
  TopologyFlags topology;
  uint64_t vocab_multiple = 0;  // 0: that of the source
  bool resume = false;
  bool no_read_back = false;
  bool is_virtual = false;  // metadata only
};

// Reshapes and reports, as a single process or as one of the ranks that mpirun or srun started. With
// `dry_run` prints only the cost. `tokenizer`: files for the new step.
Result<int> RunReshape(const OpenedSource& opened, const ReshapeFlags& flags, const FileCopies& tokenizer);

}  // namespace cairn
