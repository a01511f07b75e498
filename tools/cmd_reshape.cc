#include "tools/cmd_reshape.h"

#include <malloc.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
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
  std::optional<int> tp, pp, dp, zero, virtual_stages;
  std::vector<int> layers_per_stage;
  bool embedding_counts = false;
  bool loss_counts = false;
  uint64_t vocab_multiple = 0;
  bool resume = false;
  bool no_read_back = false;
  StepBuilderOptions writer;
  bool dry_run = false;
  bool json = false;
};

// The source's own cut of its layers stays where its pipeline stays.
Result<Topology> TargetOf(const ReshapeArguments& arguments, const Manifest& source) {
  Topology target = source.topology;
  if (arguments.pp || arguments.virtual_stages) target.layers_per_stage.clear();
  target.tp = arguments.tp.value_or(target.tp);
  target.pp = arguments.pp.value_or(target.pp);
  target.dp = arguments.dp.value_or(target.dp);
  target.zero = arguments.zero.value_or(target.zero);
  target.virtual_stages = arguments.virtual_stages.value_or(target.virtual_stages);
  if (!arguments.layers_per_stage.empty()) target.layers_per_stage = arguments.layers_per_stage;
  if (!arguments.embedding_counts && !arguments.loss_counts) return target;
  CAIRN_RETURN_IF_ERROR(Validate(target));
  CAIRN_ASSIGN_OR_RETURN(target.layers_per_stage,
                         LayersBesideEnds(static_cast<int>(IntField(source.model, "num_layers")), target,
                                          arguments.embedding_counts, arguments.loss_counts));
  return target;
}

nlohmann::json TopologyJson(const Topology& t) {
  nlohmann::json json = {{"tp", t.tp}, {"pp", t.pp}, {"dp", t.dp}, {"zero", t.zero}};
  if (t.virtual_stages != 1) json["virtual_stages"] = t.virtual_stages;
  if (!t.layers_per_stage.empty()) json["layers_per_stage"] = t.layers_per_stage;
  return json;
}

// Each shard of a stage is open while the stage is written.
void AllowManyFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

void Print(const ReshapeArguments& arguments, const CheckpointSource& source, const Topology& target,
           const ReshapeResult& result, double seconds) {
  if (arguments.json) {
    PrintJson({{"source", source.directory()},
               {"target", result.directory},
               {"topology", TopologyJson(target)},
               {"fingerprint", ToHex(result.fingerprints.overall)},
               {"files", result.files},
               {"bytes_read", result.bytes_read},
               {"bytes_written", result.bytes_written},
               {"bytes_resumed", result.bytes_resumed},
               {"read_back", !arguments.no_read_back},
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
  if (result.bytes_resumed > 0)
    fmt::print("{} of it were there already, and right\n",
               HumanBytes(static_cast<double>(result.bytes_resumed)));
  fmt::print("{}: fingerprint {}\n",
             arguments.no_read_back ? "not read back; check it with cairn verify" : "read back and equal",
             ToHex(result.fingerprints.overall));
}

Result<int> RunReshape(const ReshapeArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenAnyCkpt(arguments.source));
  CheckpointSource& source = opened.source();
  CAIRN_ASSIGN_OR_RETURN(const Topology target, TargetOf(arguments, source.manifest()));
  ReshapeOptions options{
      .target = target,
      .writer = arguments.writer,
      .vocab_multiple = arguments.vocab_multiple,
      .resume = arguments.resume,
      .read_back = !arguments.no_read_back,
      .team = RankTeam::FromEnvironment([](const char* name) { return std::getenv(name); }),
      .progress = {}};
  CAIRN_ASSIGN_OR_RETURN(const ReshapeCost cost, EstimateReshape(source, options));
  if (arguments.dry_run && !options.team.leads()) return kExitDone;
  if (arguments.dry_run) {
    CAIRN_RETURN_IF_ERROR(PrintDryRun(
        source, {cost.data_bytes, cost.file_bytes, cost.moved_bytes, cost.files, cost.peak_memory},
        arguments.json));
    return kExitDone;
  }
  AllowManyFiles();
  // Buffers go back to the system when they are freed: glibc would keep more and more of them in its heaps.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  const auto start = std::chrono::steady_clock::now();
  Result<ReshapeResult> result = [&] {
    Progress progress("reshaping", cost.moved_bytes, !arguments.json && options.team.leads());
    options.progress = [&](uint64_t done) { progress.Update(done); };
    return Reshape(FileSystem::Posix(), source, arguments.target, options);
  }();
  if (!result.ok()) return result.status();
  if (!options.team.leads()) return kExitDone;
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
  reshape
      ->add_option("--virtual-stages", arguments->virtual_stages,
                   "chunks of layers on each pipeline stage, interleaved (1: not interleaved)")
      ->option_text("V");
  reshape
      ->add_option(
          "--layers-per-stage", arguments->layers_per_stage,
          "layers of each stage (of each chunk, with --virtual-stages); as even as can be by default")
      ->delimiter(',')
      ->option_text("A,B,C");
  reshape->add_flag("--account-for-embedding-in-pipeline-split", arguments->embedding_counts,
                    "the embedding counts as a layer of the first stage");
  reshape->add_flag("--account-for-loss-in-pipeline-split", arguments->loss_counts,
                    "the output head and the loss count as a layer of the last stage");
  reshape
      ->add_option(
          "--vocab-multiple", arguments->vocab_multiple,
          "in memory the vocabulary is padded to a multiple of this times TP; as SRC says by default")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32))
      ->option_text("M");
  reshape->add_flag("--resume", arguments->resume,
                    "go on with what a killed run of the same command left; after an error, leave it again");
  reshape->add_flag("--no-read-back", arguments->no_read_back,
                    "do not read the new step back before it counts; noted in its history");
  AddWriterFlags(*reshape, arguments->writer);
  reshape->add_flag("--dry-run", arguments->dry_run, "say bytes, files, memory and time; write nothing");
  reshape->add_flag("--json", arguments->json, "print facts as JSON");
  reshape->footer(
      "The step keeps its number; `cairn train --load DST` goes on from it. What was written is read back "
      "and its\n"
      "fingerprint compared with the source's before it becomes a step. Under mpirun or srun the ranks "
      "share\n"
      "the work; all must see DST.\n\n" +
      HelpFooter("cairn reshape runs/gpt runs/gpt-tp4 --tp 4 --pp 1 --dp 2"));
  reshape->callback([arguments, &verb] { verb = [arguments] { return RunReshape(*arguments); }; });
}

}  // namespace cairn
