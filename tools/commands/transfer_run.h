// What the verbs that write checkpoints share: flags, the run of a transfer, and its report.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "convert/transfer/transfer.h"
#include "tools/commands/source_check.h"
#include "tools/source/step_tokenizer.h"

namespace cairn {

struct TransferFlags {
  std::string source;
  std::string target;
  OpenOptions open;
  SourceChecks checks;
  WriterOptions writer;
  bool dry_run = false;
  bool json = false;
};

// Adds SRC and DST, the flags of source_flags.h and source_check.h, --jobs, --max-memory, --direct, --dry-run
// and --json.
void AddTransferFlags(CLI::App& verb, TransferFlags& flags, const std::string& source_help,
                      const std::string& target_help);

// Opens the source, and checks it unless for a dry run. `weights`: for a result that cannot hold an
// optimizer; `cast`: the type that weights are cast to.
Result<OpenedSource> OpenChecked(const TransferFlags& flags, bool weights, std::optional<Dtype> cast = {});

// The tokenizer for a native step. If it cannot be copied, a note on stderr says so: the step is complete
// without it.
FileCopies TokenizerForStep(const OpenedSource& opened);

struct TimedTransfer {
  TransferResult result;
  double seconds = 0;
};

// Runs the transfer and measures it; shows a bar named `what`, if `shown`. For a dry run prints the cost, and
// returns nothing.
Result<std::optional<TimedTransfer>> RunTransfer(std::string_view what, Transfer transfer,
                                                 const TransferFlags& flags, bool shown = true);

// On stdout: the parts of a foreign source with their bytes (convert/foreign/account.h), the names of what is
// in no tensor, and the files that are left behind. Prints nothing for a native step.
void PrintAccount(const OpenedSource& source);

// The fields that all verbs have with --json.
nlohmann::ordered_json TransferFacts(const OpenedSource& opened, const TimedTransfer& done);

// The same as text. `form`: the topology of the result, perhaps after its format. `count`: "12 tensors, ", or
// nothing.
void PrintTransfer(const OpenedSource& opened, const TimedTransfer& done, std::string_view form,
                   std::string_view count = "");

}  // namespace cairn
