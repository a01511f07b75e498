#include "tools/cmd_convert.h"

#include <memory>

#include "convert/formats/formats.h"
#include "tools/exit_code.h"
#include "tools/open_ckpt.h"
#include "tools/reshape_run.h"
#include "tools/strip_run.h"

namespace cairn {
namespace {

struct ConvertArguments {
  std::string source;
  std::string target;
  std::optional<Dtype> dtype;
  TopologyFlags topology;
  StripFlags flags;
};

Status CheckFlags(const ConvertArguments& arguments) {
  const bool native = arguments.flags.options.format == StripFormat::kNative;
  if (!native && arguments.topology.any())
    return InvalidArgument("--tp, --pp, --dp and --zero are for --to native; other formats are not cut so");
  if (native && !arguments.flags.tokenizer.empty())
    return InvalidArgument(
        "a native step has no place for a tokenizer; give --tokenizer when it leaves again");
  if (!arguments.dtype && arguments.flags.saturate)
    return InvalidArgument("--saturate needs --dtype: nothing is cast without");
  return OkStatus();
}

Result<int> RunConvert(const ConvertArguments& arguments) {
  CAIRN_RETURN_IF_ERROR(CheckFlags(arguments));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenAnyCkpt(arguments.source, arguments.flags.open));
  CheckpointSource& source = opened.source();
  StripFlags flags = arguments.flags;
  if (flags.options.format == StripFormat::kNative && !arguments.dtype && flags.options.keep_fp32.empty())
    return RunReshape(source, arguments.target,
                      {.topology = arguments.topology,
                       .writer = flags.options.writer,
                       .dry_run = flags.dry_run,
                       .json = flags.json});
  flags.options.dtype = arguments.dtype;
  CAIRN_ASSIGN_OR_RETURN(flags.options.topology, arguments.topology.Of(source.manifest()));
  return RunStrip(source, arguments.target, flags);
}

std::string FormatList() {
  std::string list =
      "Formats that are recognised (--from):\n  native       a step, a run directory, or STORE:RUN@STEP\n";
  for (const Format& format : Formats())
    list += fmt::format("  {:<12} {}\n", format.name, format.description);
  return list;
}

}  // namespace

void AddConvertCommand(CLI::App& app, Verb& verb) {
  const auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* convert = app.add_subcommand("convert", "any format to any other");
  convert->add_option("SRC", arguments->source, "a checkpoint of any format below")->required();
  convert
      ->add_option("DST", arguments->target,
                   "new directory; with --to native a run directory that the step is put into")
      ->required();
  AddChoice<StripFormat>(
      *convert, "--to", arguments->flags.options.format,
      "hf: Hugging Face names with config.json; safetensors: canonical names; native: a step",
      kReleaseFormats)
      ->required();
  AddChoice<Dtype>(*convert, "--dtype", arguments->dtype,
                   "weights only, from the fp32 master where there is one, as this type; without it every "
                   "tensor keeps its own",
                   kReleaseTypes);
  AddTopologyFlags(*convert, arguments->topology);
  AddStripFlags(*convert, arguments->flags);
  convert->footer(
      FormatList() +
      "\nWhat was written is read back and compared before it gets its name. A Hugging Face source's "
      "tokenizer\ncomes along; its SHA256SUMS are for `sha256sum -c`.\n\n" +
      HelpFooter("cairn convert meta-llama/Llama-3.1-8B runs/llama --to native --tp 4 --pp 2",
                 "finite values would become infinite; nothing was written"));
  convert->callback([arguments, convert, &verb] {
    arguments->flags.options.command = CommandOf(*convert);
    verb = [arguments] { return RunConvert(*arguments); };
  });
}

}  // namespace cairn
