
#include "tools/cli/exit_code.h"
#include "tools/commands/commands.h"
#include "tools/commands/reshape_run.h"
#include "tools/source/step_tokenizer.h"

namespace cairn {
namespace {

Result<int> Reshape(const ReshapeFlags& given) {
  ReshapeFlags flags = given;
  flags.transfer.checks.first = flags.resume;
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenChecked(flags.transfer, /*weights=*/false));
  return RunReshape(opened, flags, TokenizerForStep(opened));
}

}  // namespace

void AddReshapeCommand(CLI::App& app, Verb& verb) {
  const auto [reshape, flags] =
      AddVerb(app, verb, "reshape", "rewrite a checkpoint for another TP, PP, DP, EP and ZeRO", Reshape);
  AddTopologyFlags(*reshape, flags->topology);
  reshape
      ->add_option("--vocab-multiple", flags->vocab_multiple,
                   "pad the vocabulary in memory to a multiple of this times TP; default: as in SRC")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32))
      ->option_text("M");
  CLI::Option* resume = reshape->add_flag(
      "--resume", flags->resume,
      "continue what a killed run of the same command left; if this run fails too, keep what it wrote");
  reshape
      ->add_flag("--virtual", flags->is_virtual,
                 "write only metadata over the shards of SRC, which must stay; the same command without "
                 "--virtual copies them")
      ->excludes(resume);
  reshape->add_flag("--no-read-back", flags->no_read_back,
                    "do not read the new step back before it counts; its history records this");
  AddTransferFlags(*reshape, flags->transfer,
                   "a step, RUN@STEP, a run directory, STORE:RUN@STEP, or another system's checkpoint",
                   "run directory for the new step");
  reshape->footer(
      "The step keeps its number; `cairn train --load DST` continues from it. The result is read back, and "
      "its\n"
      "fingerprint compared with the source's, before it becomes a step. Under mpirun or srun the ranks "
      "share\n"
      "the work; all must see DST.\n\n" +
      HelpFooter("cairn reshape runs/gpt runs/gpt-tp4 --tp 4 --pp 1 --dp 2", "",
                 "starts again, or continues with --resume"));
}

}  // namespace cairn
