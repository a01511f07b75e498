#include <memory>

#include "tools/cli/exit_code.h"
#include "tools/commands/commands.h"
#include "tools/commands/strip_run.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

struct StripArguments {
  std::string source;
  std::string target;
  Dtype dtype = Dtype::kF16;
  StripFlags flags;
};

Result<int> RunStrip(const StripArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenWeights(arguments.source, arguments.flags.open));
  const StripFlags& flags = arguments.flags;
  if (!flags.dry_run)
    CAIRN_RETURN_IF_ERROR(CheckSource(opened, flags.checks, flags.options.writer.max_memory, flags.json));
  return RunStrip(opened, arguments.target, arguments.flags);
}

std::vector<std::pair<std::string, StripFormat>> ReleaseFormats() {
  std::vector<std::pair<std::string, StripFormat>> formats;
  for (const System& system : Systems())
    if (system.release) formats.emplace_back(system.name, *system.release);
  return formats;
}

}  // namespace

void AddStripCommand(CLI::App& app, Verb& verb) {
  const auto arguments = std::make_shared<StripArguments>();
  CLI::App* strip = app.add_subcommand("strip", "publish the weights as fp16, bf16 or fp32");
  strip
      ->add_option("SRC", arguments->source,
                   "a step, RUN@STEP, a run directory, STORE:RUN@STEP, or another system's checkpoint")
      ->required();
  strip
      ->add_option("DST", arguments->target,
                   "new directory; with --format native a run directory for the step")
      ->required();
  AddChoice<Dtype>(*strip, "--dtype", arguments->dtype, "type of the weights (default fp16)", kReleaseTypes);
  AddChoice<StripFormat>(
      *strip, "--format", arguments->flags.options.format,
      "hf: Hugging Face names with config.json (the default); safetensors: canonical names; "
      "native: a step",
      ReleaseFormats());
  AddStripFlags(*strip, arguments->flags);
  strip->footer("Each weight is its fp32 master, if it has one, rounded to nearest even.\n\n" +
                HelpFooter("cairn strip runs/gpt release/gpt-fp16 --dtype fp16",
                           "finite values would become infinite; nothing was written"));
  strip->callback([arguments, strip, &verb] {
    arguments->flags.options.dtype = arguments->dtype;
    arguments->flags.options.command = CommandOf(*strip, {{"--dtype", "fp16"}, {"--format", "hf"}});
    verb = [arguments] { return RunStrip(*arguments); };
  });
}

}  // namespace cairn
