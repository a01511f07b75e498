#include <memory>

#include "tools/cli/exit_code.h"
#include "tools/commands/commands.h"
#include "tools/commands/strip_run.h"

namespace cairn {
namespace {

Result<int> Strip(const StripFlags& flags) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened,
                         OpenChecked(flags.transfer, /*weights=*/true, CastOf(flags.options)));
  return RunStrip(opened, flags);
}

}  // namespace

void AddStripCommand(CLI::App& app, Verb& verb) {
  const auto flags = std::make_shared<StripFlags>();
  CLI::App* strip = app.add_subcommand("strip", "publish the weights as fp16, bf16 or fp32");
  AddChoice<Dtype>(*strip, "--dtype", flags->options.dtype.emplace(Dtype::kF16),
                   "type of the weights (default fp16)", kReleaseTypes);
  AddChoice<const System*>(
      *strip, "--format", flags->options.format,
      "hf: Hugging Face names with config.json (the default); safetensors: canonical names; "
      "native: a step",
      FormatsWith([](const System& format) { return format.release != nullptr; }));
  AddStripFlags(*strip, *flags);
  strip
      ->add_option("--with", flags->with, "file to copy along with the weights, like config.json; repeatable")
      ->allow_extra_args(false)
      ->option_text("FILE");
  AddTransferFlags(*strip, flags->transfer,
                   "a step, RUN@STEP, a run directory, STORE:RUN@STEP, or another system's checkpoint",
                   "new directory; with --format native a run directory for the step");
  strip->footer("Each weight is its fp32 master, if it has one, rounded to nearest even.\n\n" +
                HelpFooter("cairn strip runs/gpt release/gpt-fp16 --dtype fp16",
                           "finite values would become infinite; nothing was written"));
  strip->callback([flags, strip, &verb] {
    flags->options.command = CommandOf(*strip, {{"--dtype", "fp16"}, {"--format", "hf"}});
    verb = [flags] { return Strip(*flags); };
  });
}

}  // namespace cairn
