#include "tools/cmd_reshape.h"

#include <chrono>
#include <memory>

#include "convert/reshape.h"
#include "tools/exit_code.h"
#include "tools/open_ckpt.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/writer_flags.h"

namespace cairn {
namespace {

struct ReshapeArguments {
  std::string source;
  std::string target;
  std::optional<int> tp, pp, dp, zero;
  StepBuilderOptions writer;
  bool dry_run = false;
  bool json = false;
};

Topology TargetOf(const ReshapeArguments& arguments, const Topology& source) {
  return {.tp = arguments.tp.value_or(source.tp),
          .pp = arguments.pp.value_or(source.pp),
          .dp = arguments.dp.value_or(source.dp),
          .zero = arguments.zero.value_or(source.zero)};
}

void Print(const ReshapeArguments& arguments, const CheckpointSource& source, const Topology& target,
           const ReshapeResult& result, double seconds) {
  if (arguments.json) {
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

Result<int> RunReshape(const ReshapeArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenAnyCkpt(arguments.source));
  CheckpointSource& source = opened.source();
  ReshapeOptions options{
      .target = TargetOf(arguments, source.manifest().topology), .writer = arguments.writer, .progress = {}};
  CAIRN_ASSIGN_OR_RETURN(const ReshapeCost cost, EstimateReshape(source, options));
  if (arguments.dry_run) {
    CAIRN_RETURN_IF_ERROR(PrintDryRun(
        source, {cost.data_bytes, cost.file_bytes, cost.moved_bytes, cost.files, cost.peak_memory},
        arguments.json));
    return kExitDone;
  }
  const auto start = std::chrono::steady_clock::now();
  Result<ReshapeResult> result = [&] {
    Progress progress("reshaping", cost.moved_bytes, !arguments.json);
    options.progress = [&](uint64_t done) { progress.Update(done); };
    return Reshape(FileSystem::Posix(), source, arguments.target, options);
  }();
  if (!result.ok()) return result.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  Print(arguments, source, options.target, *result, seconds.count());
  return kExitDone;
}

}  // namespace

void AddReshapeCommand(CLI::App& app, Verb& verb) {
  const auto arguments = std::make_shared<ReshapeArguments>();
  CLI::App* reshape = app.add_subcommand("reshape", "rewrite a checkpoint for another TP, PP, DP and ZeRO");
  reshape->add_option("SRC", arguments->source, "a step, a run directory, or STORE:RUN@STEP")->required();
  reshape->add_option("DST", arguments->target, "run directory that the new step is put into")->required();
  reshape->add_option("--tp", arguments->tp, "tensor parallel size; that of SRC where it is left out")
      ->option_text("N");
  reshape->add_option("--pp", arguments->pp, "pipeline stages; those of SRC where it is left out")
      ->option_text("N");
  reshape->add_option("--dp", arguments->dp, "data parallel size; that of SRC where it is left out")
      ->option_text("N");
  reshape->add_option("--zero", arguments->zero, "ZeRO stage; that of SRC where it is left out")
      ->option_text("N");
  AddWriterFlags(*reshape, arguments->writer);
  reshape->add_flag("--dry-run", arguments->dry_run, "say bytes, files, memory and time; write nothing");
  reshape->add_flag("--json", arguments->json, "print facts as JSON");
  reshape->footer(
      "The step keeps its number; `cairn train --load DST` goes on from it. What was written is read back "
      "and its\n"
      "fingerprint compared with the source's before it becomes a step.\n\n" +
      HelpFooter("cairn reshape runs/gpt runs/gpt-tp4 --tp 4 --pp 1 --dp 2"));
  reshape->callback([arguments, &verb] { verb = [arguments] { return RunReshape(*arguments); }; });
}

}  // namespace cairn
