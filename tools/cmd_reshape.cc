#include "tools/cmd_reshape.h"

#include <memory>

#include "tools/exit_code.h"
#include "tools/open_ckpt.h"
#include "tools/reshape_run.h"
#include "tools/source_flags.h"
#include "tools/writer_flags.h"

namespace cairn {
namespace {

struct ReshapeArguments {
  std::string source;
  std::string target;
  OpenOptions open;
  TopologyFlags topology;
  StepBuilderOptions writer;
  bool dry_run = false;
  bool json = false;
};

Result<int> RunReshape(const ReshapeArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenAnyCkpt(arguments.source, arguments.open));
  CheckpointSource& source = opened.source();
  return RunReshape(source, arguments.target, arguments.topology.Of(source.manifest().topology),
                    arguments.writer, arguments.dry_run, arguments.json);
}

}  // namespace

void AddReshapeCommand(CLI::App& app, Verb& verb) {
  const auto arguments = std::make_shared<ReshapeArguments>();
  CLI::App* reshape = app.add_subcommand("reshape", "rewrite a checkpoint for another TP, PP, DP and ZeRO");
  reshape
      ->add_option("SRC", arguments->source,
                   "a step, a run directory, STORE:RUN@STEP, or another system's checkpoint")
      ->required();
  reshape->add_option("DST", arguments->target, "run directory that the new step is put into")->required();
  AddTopologyFlags(*reshape, arguments->topology);
  AddSourceFlags(*reshape, arguments->open);
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
