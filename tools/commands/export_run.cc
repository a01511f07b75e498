#include "tools/commands/export_run.h"

#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/stop_signals.h"
#include "tools/cli/writer_flags.h"
#include "tools/commands/transfer_report.h"

namespace cairn {
namespace {

void Print(const OpenedSource& opened, const System& format, const Topology& topology,
           const TimedTransfer& done, bool json) {
  const TransferResult& result = done.result;
  const std::string fingerprint = ToHex(result.fingerprints.overall);
  const size_t tensors = result.fingerprints.tensors.size();
  if (json) {
    nlohmann::ordered_json facts = TransferFacts(opened, result, done.seconds);
    facts.update({{"source", opened.source().name()},
                  {"format", format.name},
                  {"source_fingerprint", fingerprint},
                  {"tensors", tensors},
                  {"notes", result.notes}});
    PrintJson(facts);
    return;
  }
  PrintTransfer(opened, result, done.seconds, fmt::format("{}, {}", format.name, ToString(topology)),
                Counted(tensors, "tensor") + ", ");
  fmt::print("read back and equal: source fingerprint {}\n", fingerprint);
}

}  // namespace

Result<int> RunExport(const OpenedSource& opened, const System& format, const std::string& target,
                      const ExportFlags& flags) {
  CheckpointSource& source = opened.source();
  CAIRN_ASSIGN_OR_RETURN(const Transfer transfer, PlanExport(source, format, flags.options));
  CAIRN_ASSIGN_OR_RETURN(const TransferCost cost, transfer.Cost());
  if (flags.dry_run) {
    CAIRN_RETURN_IF_ERROR(PrintDryRun(source, cost, target, flags.json));
    return kExitDone;
  }
  RemoveOutputsAtSignals();
  CAIRN_ASSIGN_OR_RETURN(const TimedTransfer done,
                         RunTimed("converting", cost.moved_bytes, !flags.json, transfer, target));
  Print(opened, format, flags.options.target.topology, done, flags.json);
  for (const std::string& note : done.result.notes) PrintProblem("note: " + note);
  return kExitDone;
}

}  // namespace cairn
