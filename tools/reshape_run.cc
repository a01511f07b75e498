#include "tools/reshape_run.h"

#include <chrono>

#include "tools/exit_code.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/writer_flags.h"

namespace cairn {
namespace {

void Print(bool json, const CheckpointSource& source, const Topology& target, const ReshapeResult& result,
           double seconds) {
  if (json) {
    PrintJson({{"source", source.directory()},
               {"target", result.directory},
               {"topology", {{"tp", target.tp}, {"pp", target.pp}, {"dp", target.dp}, {"zero", target.zero}}},
               {"fingerprint", ToHex(result.fingerprints.overall)},
               {"files", result.files},
               {"bytes_read", result.bytes_read},
               {"bytes_written", result.bytes_written},
               {"seconds", seconds},
               {"peak_memory_bytes", PeakMemoryBytes()}});
    return;
  }
  const auto written = static_cast<double>(result.bytes_written);
  fmt::print("{} ({})\n-> {} ({})\n", source.directory(), ToString(source.manifest().topology),
             result.directory, ToString(target));
  fmt::print("{} in {} files, {} ({}/s), peak memory {}\n", HumanBytes(written), result.files,
             HumanSeconds(seconds), HumanBytes(written / std::max(seconds, 1e-9)),
             HumanBytes(static_cast<double>(PeakMemoryBytes())));
  fmt::print("read back and equal: fingerprint {}\n", ToHex(result.fingerprints.overall));
}

}  // namespace

Topology TopologyFlags::Of(const Topology& source) const {
  return {.tp = tp.value_or(source.tp),
          .pp = pp.value_or(source.pp),
          .dp = dp.value_or(source.dp),
          .zero = zero.value_or(source.zero)};
}

void AddTopologyFlags(CLI::App& verb, TopologyFlags& flags) {
  verb.add_option("--tp", flags.tp, "tensor parallel size; that of SRC where it is left out")
      ->option_text("N");
  verb.add_option("--pp", flags.pp, "pipeline stages; those of SRC where it is left out")->option_text("N");
  verb.add_option("--dp", flags.dp, "data parallel size; that of SRC where it is left out")->option_text("N");
  verb.add_option("--zero", flags.zero, "ZeRO stage; that of SRC where it is left out")->option_text("N");
}

Result<int> RunReshape(CheckpointSource& source, const std::string& target, const Topology& topology,
                       const StepBuilderOptions& writer, bool dry_run, bool json) {
  ReshapeOptions options{.target = topology, .writer = writer, .progress = {}};
  CAIRN_ASSIGN_OR_RETURN(const ReshapeCost cost, EstimateReshape(source, options));
  if (dry_run) {
    CAIRN_RETURN_IF_ERROR(PrintDryRun(
        source, {cost.data_bytes, cost.file_bytes, cost.moved_bytes, cost.files, cost.peak_memory}, json));
    return kExitDone;
  }
  const auto start = std::chrono::steady_clock::now();
  Result<ReshapeResult> result = [&] {
    Progress progress("reshaping", cost.moved_bytes, !json);
    options.progress = [&](uint64_t done) { progress.Update(done); };
    return Reshape(FileSystem::Posix(), source, target, options);
  }();
  if (!result.ok()) return result.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  Print(json, source, topology, *result, seconds.count());
  return kExitDone;
}

}  // namespace cairn
