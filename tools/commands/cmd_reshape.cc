#include <cstdlib>
#include <memory>

#include "tools/check/source_check.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/writer_flags.h"
#include "tools/commands/commands.h"
#include "tools/commands/reshape_run.h"
#include "tools/commands/step_tokenizer.h"
#include "tools/source/open_ckpt.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

struct ReshapeArguments {
  std::string source;
  std::string target;
  OpenOptions open;
  SourceChecks checks;
  ReshapeFlags flags;
};

Result<int> RunReshape(const ReshapeArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenAnyCkpt(arguments.source, arguments.open));
  const ReshapeFlags& flags = arguments.flags;
  SourceChecks checks = arguments.checks;
  checks.sums_first = flags.resume;
  if (!flags.dry_run) CAIRN_RETURN_IF_ERROR(CheckSource(opened, checks, flags.writer.max_memory, flags.json));
  ReshapeFlags with_tokenizer = flags;
  with_tokenizer.writer.beside = TokenizerForStep(opened);
  return RunReshape(opened, arguments.target, with_tokenizer);
}

}  // namespace

void AddReshapeCommand(CLI::App& app, Verb& verb) {
  const auto arguments = std::make_shared<ReshapeArguments>();
  CLI::App* reshape = app.add_subcommand("reshape", "rewrite a checkpoint for another TP, PP, DP and ZeRO");
  reshape
      ->add_option("SRC", arguments->source,
                   "a step, RUN@STEP, a run directory, STORE:RUN@STEP, or another system's checkpoint")
      ->required();
  reshape->add_option("DST", arguments->target, "run directory for the new step")->required();
  AddTopologyFlags(*reshape, arguments->flags.topology);
  reshape
      ->add_option("--vocab-multiple", arguments->flags.vocab_multiple,
                   "pad the vocabulary in memory to a multiple of this times TP; default: as SRC says")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32))
      ->option_text("M");
  CLI::Option* resume = reshape->add_flag(
      "--resume", arguments->flags.resume,
      "continue what a killed run of the same command left; keep what is written if this run fails, too");
  reshape
      ->add_flag("--virtual", arguments->flags.is_virtual,
                 "write only metadata over the shards of SRC, which must stay; the same command without "
                 "--virtual copies them")
      ->excludes(resume);
  reshape->add_flag("--no-read-back", arguments->flags.no_read_back,
                    "do not read the new step back before it counts; its history records this");
  AddSourceFlags(*reshape, arguments->open);
  AddSourceCheckFlags(*reshape, arguments->checks);
  AddWriterFlags(*reshape, arguments->flags.writer);
  reshape->add_flag("--dry-run", arguments->flags.dry_run,
                    "say bytes, files, memory and time; write nothing");
  reshape->add_flag("--json", arguments->flags.json, "print facts as JSON");
  reshape->footer(
      "The step keeps its number; `cairn train --load DST` continues from it. The result is read back, and "
      "its\n"
      "fingerprint compared with the source's, before it becomes a step. Under mpirun or srun the ranks "
      "share\n"
      "the work; all must see DST.\n\n" +
      HelpFooter("cairn reshape runs/gpt runs/gpt-tp4 --tp 4 --pp 1 --dp 2"));
  reshape->callback([arguments, &verb] { verb = [arguments] { return RunReshape(*arguments); }; });
}

}  // namespace cairn
