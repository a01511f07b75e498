// Checks of another system's checkpoint while its tensors are read: that its bytes match its checksums, and
// that its weights are its rounded masters.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/source/open_ckpt.h"

namespace cairn {

// --no-checksums and --no-rounding-check of the verbs that copy tensors.
struct SourceChecks {
  bool skip_sums = false;
  bool skip_rounding = false;
  // Everything is checked before the verb begins, for one that may not read what an earlier run has read.
  bool first = false;
};
void AddSourceCheckFlags(CLI::App& verb, SourceChecks& checks);

// Counts the experts of a mixture. Prints notes on stderr. Errors: Corrupt naming those that are missing.
Status CheckNoExpertIsLost(const CheckpointSource& source, const std::vector<std::string>& allow);

// Records of torch.save are compared with their CRC-32 as they are read (CheckpointSource::CheckRead); with
// `first`, at once. Errors: Corrupt naming file, byte and record. With `first`, 16-bit weights that are not
// their fp32 masters rounded are a note on stderr: files of two steps were mixed, or one of them was changed;
// otherwise RunTransfer() compares them. A check that is left out goes into the source's history. Does
// nothing for steps of Cairn, whose digests are checked at every read.
Status CheckSource(const OpenedSource& opened, const SourceChecks& checks, uint64_t max_memory, bool json);

}  // namespace cairn
