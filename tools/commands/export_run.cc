#include "tools/commands/export_run.h"

#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/stop_signals.h"

namespace cairn {
namespace {

void Print(const OpenedSource& opened, const System& format, const Topology& topology,
           const TimedTransfer& done, bool json) {
  const TransferResult& result = done.result;
  const std::string fingerprint = ToHex(result.fingerprints.overall);
  const size_t tensors = result.fingerprints.tensors.size();
  if (json) {
    nlohmann::ordered_json facts = TransferFacts(opened, done);
    facts.update({{"source", opened.source().name()},
                  {"format", format.name},
                  {"source_fingerprint", fingerprint},
                  {"tensors", tensors},
                  {"notes", result.notes}});
    PrintJson(facts);
    return;
  }
  PrintTransfer(opened, done, fmt::format("{}, {}", format.name, ToString(topology)),
                Counted(tensors, "tensor") + ", ");
  fmt::print("read back and equal: source fingerprint {}\n", fingerprint);
}

}  // namespace

Result<int> RunExport(const OpenedSource& opened, const System& format, const ExportOptions& options,
                      const TransferFlags& flags) {
  CAIRN_ASSIGN_OR_RETURN(Transfer transfer, PlanExport(opened.source(), format, options));
  RemoveOutputsAtSignals();
  CAIRN_ASSIGN_OR_RETURN(const auto done, RunTransfer("converting", std::move(transfer), flags));
  if (!done) return kExitDone;
  Print(opened, format, options.target.topology, *done, flags.json);
  for (const std::string& note : done->result.notes) PrintProblem("note: " + note);
  return kExitDone;
}

}  // namespace cairn
