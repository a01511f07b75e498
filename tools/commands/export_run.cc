#include "tools/commands/export_run.h"

#include "ckpt/base/proc_memory.h"
#include "ckpt/base/stopwatch.h"
#include "convert/foreign/account.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/stop_signals.h"
#include "tools/cli/writer_flags.h"
#include "tools/commands/account_text.h"

namespace cairn {
namespace {

void Print(const OpenedSource& opened, const TargetFormat& format, const Topology& topology,
           const ExportResult& result, double seconds, bool json) {
  const CheckpointSource& source = opened.source();
  if (json) {
    PrintJson({{"source", source.name()},
               {"target", result.path},
               {"format", format.name},
               {"source_fingerprint", ToHex(result.source_fingerprint)},
               {"account", AccountOf(source)},
               {"left_behind", opened.LeftBehind()},
               {"tensors", result.tensors},
               {"files", result.files},
               {"bytes_read", result.bytes_read},
               {"bytes_written", result.bytes_written},
               {"notes", result.notes},
               {"seconds", seconds},
               {"peak_memory_bytes", PeakMemoryBytes()}});
    return;
  }
  const auto written = static_cast<double>(result.bytes_written);
  fmt::print("{} ({})\n-> {} ({}, {})\n", source.name(), ToString(source.manifest().topology), result.path,
             format.name, ToString(topology));
  PrintAccount(opened);
  fmt::print("{}, {} in {}, {} ({}/s), peak memory {}\n", Counted(result.tensors, "tensor"),
             HumanBytes(written), Counted(result.files, "file"), HumanSeconds(seconds),
             HumanBytes(written / std::max(seconds, 1e-9)), HumanBytes(PeakMemoryBytes()));
  fmt::print("read back and equal: source fingerprint {}\n", ToHex(result.source_fingerprint));
}

}  // namespace

Result<int> RunExport(const OpenedSource& opened, const TargetFormat& format, const std::string& target,
                      const ExportFlags& flags) {
  CheckpointSource& source = opened.source();
  ExportOptions options = flags.options;
  const Result<TransferCost> estimated = EstimateExport(source, format, options);
  if (!estimated.ok()) return estimated.status().WithContext(source.name());
  if (flags.dry_run) {
    CAIRN_RETURN_IF_ERROR(PrintDryRun(source, *estimated, target, flags.json));
    return kExitDone;
  }
  PrepareToWrite();
  RemoveOutputsAtSignals();
  const Stopwatch watch;
  Result<ExportResult> result = [&] {
    Progress progress("converting", estimated->moved_bytes, !flags.json);
    options.progress = [&](uint64_t done) { progress.Update(done); };
    return Export(FileSystem::Posix(), source, format, target, options);
  }();
  if (!result.ok()) return result.status();
  const double seconds = watch.Seconds();
  Print(opened, format, options.target.topology, *result, seconds, flags.json);
  for (const std::string& note : result->notes) PrintProblem("note: " + note);
  return kExitDone;
}

}  // namespace cairn
