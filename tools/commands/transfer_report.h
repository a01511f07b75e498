// What the verbs that write checkpoints print of their work: of the source, the result, and the time.
#pragma once

#include <string>

#include "convert/transfer/transfer.h"
#include "tools/source/open_ckpt.h"

namespace cairn {

// On stdout: the parts of a foreign source with their bytes (convert/foreign/account.h), the names of what is
// in no tensor, and the files that stay behind. Prints nothing for a native step.
void PrintAccount(const OpenedSource& source);

struct TimedTransfer {
  TransferResult result;
  double seconds = 0;
};

// Prepares the process, runs the transfer and measures it. Shows a bar of `bytes` named `what`, if `shown`.
Result<TimedTransfer> RunTimed(std::string_view what, uint64_t bytes, bool shown, Transfer transfer,
                               const std::string& target);

// The fields that all verbs have with --json.
nlohmann::ordered_json TransferFacts(const OpenedSource& opened, const TransferResult& result,
                                     double seconds);

// The same as text. `form`: the topology of the result, perhaps after its format. `count`: "12 tensors, ", or
// nothing.
void PrintTransfer(const OpenedSource& opened, const TransferResult& result, double seconds,
                   std::string_view form, std::string_view count = "");

}  // namespace cairn
