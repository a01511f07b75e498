// The format of the target selects the verb. A format that strip writes is a release: weights, cast if a type
// is given. Native without a cast is a reshape, which keeps every tensor of a training. All
// other formats go to export, by their row's plan. Another system's source is checked while
// it is read, as far as its files bring checksums. Choices and help come from the tables of formats.

#include <algorithm>
#include <memory>

#include "ckpt/base/glob.h"
#include "convert/formats/systems.h"
#include "convert/verbs/export.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/stop_signals.h"
#include "tools/commands/commands.h"
#include "tools/commands/reshape_run.h"
#include "tools/commands/strip_run.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

struct ConvertArguments {
  std::optional<Dtype> dtype;
  TopologyFlags topology;
  StripFlags flags;
  int param_groups = 0;  // of an optimizer
  std::optional<bool> names_in_memory;
  bool local_spec = false;
};

// Flags for released weights do not apply to a training that continues.
Status CheckTrainingFlags(const ConvertArguments& arguments) {
  const StripOptions& options = arguments.flags.options;
  if (!options.keep_fp32.empty() || arguments.flags.saturate || !arguments.flags.tokenizer.empty())
    return InvalidArgument(
        "--keep-fp32, --saturate and --tokenizer are only for hf, safetensors and native; {} takes --dtype",
        options.format->name);
  return OkStatus();
}

Status CheckNames(const ConvertArguments& arguments) {
  const System& format = *arguments.flags.options.format;
  if (!arguments.names_in_memory || format.any_names) return OkStatus();
  return InvalidArgument("--names is only for dcp and universal; the names of {} are fixed", format.name);
}

Status CheckFlags(const ConvertArguments& arguments) {
  if (arguments.param_groups != 0)
    return InvalidArgument("--param-groups is only for formats with DeepSpeed's or Megatron's optimizer");
  if (!arguments.flags.options.format->is_native() && arguments.topology.any())
    return InvalidArgument(
        "--tp, --pp, --dp, --zero, --ep and --etp are only for --to native; leave them out");
  if (!arguments.dtype && arguments.flags.saturate)
    return InvalidArgument("--saturate needs --dtype: without it nothing is cast");
  return OkStatus();
}

void PrintExport(const OpenedSource& opened, const System& format, const Topology& topology,
                 const TimedTransfer& done, bool json) {
  const TransferResult& result = done.result;
  const std::string fingerprint = ToHex(result.fingerprints.overall);
  const size_t tensors = result.fingerprints.tensors.size();
  if (json) {
    nlohmann::ordered_json facts = TransferFacts(opened, done);
    facts.update({{"source", opened.source().name()},
                  {"format", format.name},
                  {"source_fingerprint", fingerprint},
                  {"tensors", tensors},
                  {"notes", result.notes}});
    PrintJson(facts);
    return;
  }
  PrintTransfer(opened, done, fmt::format("{}, {}", format.name, ToString(topology)),
                Counted(tensors, "tensor") + ", ");
  fmt::print("read back and equal: source fingerprint {}\n", fingerprint);
}

// A training that computes in fp32 loads the rounded weights.
void NoteMasters(const CheckpointSource& source) {
  const bool has_masters = std::ranges::any_of(
      source.catalog().tensors, [](const TensorEntry& tensor) { return tensor.role == Role::kMaster; });
  if (has_masters)
    PrintProblem(
        "note: the masters are beside the 16-bit weights, as the optimizer's master_param; --dtype fp32 "
        "writes them as the weights");
}

// Writes and reports, or prints the cost. Notes about state that cannot be carried go to stderr.
Result<int> RunExport(const OpenedSource& opened, const System& format, const ExportOptions& options,
                      const TransferFlags& flags) {
  CAIRN_ASSIGN_OR_RETURN(Transfer transfer, PlanExport(opened.source(), format, options));
  RemoveOutputsAtSignals();
  CAIRN_ASSIGN_OR_RETURN(const auto done, RunTransfer("converting", std::move(transfer), flags));
  if (!done) return kExitDone;
  PrintExport(opened, format, options.target.topology, *done, flags.json);
  for (const std::string& note : done->result.notes) PrintProblem("note: " + note);
  return kExitDone;
}

// A stage that the format does not have becomes the nearest one.
void ChooseZero(const System& format, Topology& topology) {
  const int most =
      topology.pp > 1 ? std::min(format.most_zero, format.most_zero_in_pipeline) : format.most_zero;
  if (topology.zero <= most) return;
  PrintProblem(fmt::format("note: {} has no ZeRO {}{}; the nearest is written, --zero {}", format.name,
                           topology.zero, topology.pp > 1 && format.most_zero > most ? " in a pipeline" : "",
                           most));
  topology.zero = most;
}

Result<int> RunExportTo(const ConvertArguments& arguments) {
  CAIRN_RETURN_IF_ERROR(CheckTrainingFlags(arguments));
  TransferFlags flags = arguments.flags.transfer;
  const bool is_dcp = arguments.flags.options.format->name == "dcp";
  flags.open.keep_unread = is_dcp;
  flags.open.names_in_memory = arguments.flags.options.format->any_names &&
                               arguments.names_in_memory.value_or(!flags.open.config.empty());
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenChecked(flags, /*weights=*/false, arguments.dtype));
  if (is_dcp && flags.open.names_in_memory && !arguments.dtype) NoteMasters(opened.source());
  CAIRN_ASSIGN_OR_RETURN(Topology topology, arguments.topology.Of(opened.source().manifest()));
  ChooseZero(*arguments.flags.options.format, topology);
  const ExportOptions options{.target = {.topology = topology,
                                         .dtype = arguments.dtype,
                                         .local_spec = arguments.local_spec,
                                         .param_groups = arguments.param_groups,
                                         .allow_optimizer = FitsAnyGlob("optimizer", flags.open.allow)},
                              .writer = flags.writer};
  return RunExport(opened, *arguments.flags.options.format, options, flags);
}

Result<int> RunConvert(const ConvertArguments& arguments) {
  CAIRN_RETURN_IF_ERROR(CheckQuantize(arguments.flags.options));
  CAIRN_RETURN_IF_ERROR(CheckNames(arguments));
  if (!arguments.flags.options.format->release) return RunExportTo(arguments);
  CAIRN_RETURN_IF_ERROR(CheckFlags(arguments));
  StripFlags flags = arguments.flags;
  const bool whole = flags.options.format->is_native() && !arguments.dtype && flags.options.keep_fp32.empty();
  flags.options.dtype = arguments.dtype;
  if (!flags.options.format->is_native()) flags.transfer.open.dequantized.reset();  // unless it is cast
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened,
                         OpenChecked(flags.transfer, !whole, CastOf(flags.options)));
  if (whole) {
    CAIRN_ASSIGN_OR_RETURN(const FileCopies tokenizer, ChooseFilesBeside(opened, flags));
    RemoveOutputsAtSignals();  // unlike `cairn reshape`, there is no --resume that continues them
    return RunReshape(opened, {.transfer = flags.transfer, .topology = arguments.topology}, tokenizer);
  }
  CAIRN_ASSIGN_OR_RETURN(flags.options.topology, arguments.topology.Of(opened.source().manifest()));
  return RunStrip(opened, flags);
}

std::string FormatList() {
  std::string list = "Formats that are written (--to):\n";
  for (const System& system : Systems())
    if (!system.writes.empty()) list += fmt::format("  {:<12} {}\n", system.name, system.writes);
  list += "\nFormats that are recognised (--from):\n";
  for (const System& system : Systems())
    if (!system.reads.empty()) list += fmt::format("  {:<12} {}\n", system.name, system.reads);
  return list;
}

}  // namespace

void AddConvertCommand(CLI::App& app, Verb& verb) {
  const auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* convert = app.add_subcommand("convert", "convert a checkpoint from any format to any other");
  AddChoice<const System*>(*convert, "--to", arguments->flags.options.format, "format of DST",
                           FormatsWith([](const System& format) { return !format.writes.empty(); }))
      ->required();
  AddChoice<Dtype>(*convert, "--dtype", arguments->dtype,
                   "type of the weights, rounded from the fp32 masters if there are any; hf, safetensors and "
                   "native then hold only weights. Default: every tensor keeps its type",
                   kReleaseTypes);
  convert
      ->add_option("--param-groups", arguments->param_groups,
                   "groups of the optimizer's parameters: 1, or 2 (matrices, then vectors, which have no "
                   "weight decay). Default: those of SRC")
      ->check(CLI::Range(1, 2))
      ->option_text("N");
  AddChoice<bool>(*convert, "--transformer-impl", arguments->local_spec,
                  "implementation of Megatron-Core's layers, which names their norms: transformer_engine "
                  "(the default) or local",
                  {{"transformer_engine", false}, {"local", true}});
  AddChoice<bool>(
      *convert, "--names", arguments->names_in_memory,
      "names of the tensors in dcp and universal: transformers, those of its modules in memory, so "
      "that a training continues from it; or canonical. Default: transformers with --config",
      {{"canonical", false}, {"transformers", true}});
  AddTopologyFlags(*convert, arguments->topology);
  AddStripFlags(*convert, arguments->flags);
  AddTransferFlags(*convert, arguments->flags.transfer, "a checkpoint in one of the listed formats",
                   "new directory; with --to native a run directory for the step");
  convert->footer(
      FormatList() +
      "\nThe result is read back and compared before it gets its name. The tokenizer of a Hugging Face "
      "source is\ncopied, into native steps too. `sha256sum -c` checks the SHA256SUMS of a release.\n\n" +
      HelpFooter("cairn convert meta-llama/Llama-3.1-8B runs/llama --to native --tp 4 --pp 2",
                 "finite values would become infinite; nothing was written"));
  convert->callback([arguments, convert, &verb] {
    arguments->flags.options.command = CommandOf(*convert);
    verb = [arguments] { return RunConvert(*arguments); };
  });
}

}  // namespace cairn
