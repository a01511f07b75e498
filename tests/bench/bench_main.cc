// `cairn-bench`: measures Cairn's speed and this machine's limits in one process.
//
// A table of jobs makes the subcommands that measure a size and a disk with the same flags; codec takes a
// checkpoint. Every report begins with the facts of the machine, without which a number means little.

#include <CLI/CLI.hpp>
#include <memory>

#include "runtime/config/wrapped_help.h"
#include "tests/bench/bench_codec.h"
#include "tests/bench/bench_save.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/cli/verb.h"

namespace cairn {
namespace {

using Measure = Result<BenchResult> (*)(const BenchOptions&);

struct BenchJob {
  const char* name;
  const char* what;
  const char* notes;
  Measure measure;
};

constexpr BenchJob kJobs[] = {
    {"save", "compare our snapshot and flush with memcpy and a raw O_DIRECT writer",
     "Prints flush_ratio and stall_ratio with their goals. A time counts only after the written bytes were "
     "read back and verified.",
     MeasureSave},
    {"load", "compare our verified load with plain reads, from the page cache and from the disk",
     "Prints load_warm_ratio and load_cold_ratio with their goals. A time counts only after the loaded bytes "
     "were compared.",
     MeasureLoad},
};

Result<nlohmann::ordered_json> Facts(const char* name, const BenchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(nlohmann::ordered_json machine, MachineFacts(options.dir));
  return nlohmann::ordered_json{{"bench", name}, {"bytes", options.bytes}, {"machine", std::move(machine)}};
}

Result<int> Run(const BenchJob& job, const BenchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(nlohmann::ordered_json report, Facts(job.name, options));
  CAIRN_ASSIGN_OR_RETURN(const BenchResult result, job.measure(options));
  report["verified_bytes"] = result.verified_bytes;
  PrintReport(options, std::move(report), result.samples, result.goals);
  return kExitDone;
}

Result<int> RunCodec(const std::string& checkpoint, const BenchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(nlohmann::ordered_json report, Facts("codec", options));
  CAIRN_ASSIGN_OR_RETURN(const CodecBench bench, MeasureCheckpointCodec(options, checkpoint));
  report["verified_bytes"] = bench.result.verified_bytes;
  TextTable table({"class", "bytes", "stored", "fraction"});
  for (const CodecClass& each : bench.classes) {
    const double fraction = static_cast<double>(each.stored_bytes) / static_cast<double>(each.bytes);
    report["classes"][each.name] = {
        {"bytes", each.bytes}, {"stored_bytes", each.stored_bytes}, {"fraction", fraction}};
    table.Add(
        {each.name, HumanBytes(each.bytes), HumanBytes(each.stored_bytes), fmt::format("{:.4f}", fraction)});
  }
  PrintReport(options, std::move(report), bench.result.samples, {});
  if (options.json) return kExitDone;
  fmt::print("\n");
  table.Print();
  return kExitDone;
}

void AddCommonFlags(CLI::App* command, const std::shared_ptr<BenchOptions>& options) {
  command->add_option("--rounds", options->rounds, "rounds; figures are their medians (default 5)")
      ->check(CLI::Range(1, 1000))
      ->option_text("N");
  command->add_flag("--json", options->json, "print all figures as JSON");
}

void AddJob(CLI::App& bench, const BenchJob& job, Verb& verb) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* command = bench.add_subcommand(job.name, job.what);
  AddCommonFlags(command, options);
  command->add_option("--bytes", options->bytes, "bytes to move, like 4GB (default 1GiB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->option_text("SIZE");
  command->add_option("--dir", options->dir, "directory on the disk to measure (default: this one)")
      ->check(CLI::ExistingDirectory)
      ->option_text("DIR");
  command->footer(fmt::format(
      "{}\n\n{}", job.notes, HelpFooter(fmt::format("cairn-bench {} --bytes 4GB --dir /scratch", job.name))));
  command->callback([options, &job, &verb] {
    options->bytes = std::max<uint64_t>(options->bytes / kBenchUnit, 1) * kBenchUnit;
    verb = [options, &job] { return Run(job, *options); };
  });
}

void AddCodec(CLI::App& bench, Verb& verb) {
  const auto options = std::make_shared<BenchOptions>();
  const auto checkpoint = std::make_shared<std::string>();
  CLI::App* command = bench.add_subcommand("codec", "what compression makes of a checkpoint's tensors");
  command->add_option("CKPT", *checkpoint, "a step, RUN@STEP, a run directory, or STORE:RUN@STEP")
      ->required();
  AddCommonFlags(command, options);
  command
      ->add_option("--bytes", options->bytes,
                   "at most this many bytes of each class of tensors (default 1GiB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->option_text("SIZE");
  command->footer(
      "One thread. NAME_in is the speed of encoding, NAME_out of decoding, both in bytes of the tensors. "
      "Everything encoded is decoded and compared.\n\n" +
      HelpFooter("cairn-bench codec runs/gpt"));
  command->callback([options, checkpoint, &verb] {
    verb = [options, checkpoint] { return RunCodec(*checkpoint, *options); };
  });
}

int RunBench(int argc, char** argv) {
  CLI::App app("Measures this machine's limits, and Cairn's speed beside them.", "cairn-bench");
  app.require_subcommand(1);
  app.footer("A slow result is not a failure.\n\n" + HelpFooter("cairn-bench save --json"));
  app.formatter(std::make_shared<WrappedHelp>());
  Verb verb;
  for (const BenchJob& job : kJobs) AddJob(app, job, verb);
  AddCodec(app, verb);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    PrintProblem(error.what());
    return kExitTrouble;
  }
  const Result<int> result = verb();
  if (result.ok()) return *result;
  PrintProblem(result.status().message());
  return kExitTrouble;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::RunBench(argc, argv); }
