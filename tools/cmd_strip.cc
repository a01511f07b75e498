#include "tools/cmd_strip.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "convert/strip.h"
#include "tools/exit_code.h"
#include "tools/open_ckpt.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/writer_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr size_t kListedTensors = 10;  // of those that lost something; --json has all

struct StripArguments {
  std::string source;
  std::string target;
  StripOptions options;
  bool saturate = false;
  bool dry_run = false;
  bool json = false;
};

CastCounts TotalOf(const StripResult& result) {
  CastCounts total;
  for (const StrippedTensor& tensor : result.tensors) total += tensor.counts;
  return total;
}

ordered_json ToJson(const CastCounts& counts) {
  return {{"elements", counts.elements},
          {"overflowed", counts.overflowed},
          {"subnormal", counts.subnormal},
          {"underflowed", counts.underflowed},
          {"nonfinite", counts.nonfinite}};
}

ordered_json ToJson(const StripResult& result, double seconds) {
  ordered_json tensors = ordered_json::array();
  for (const StrippedTensor& tensor : result.tensors) {
    ordered_json row = {{"name", tensor.name},
                        {"source", Name(tensor.source)},
                        {"from", Name(tensor.from)},
                        {"to", Name(tensor.to)}};
    row.update(ToJson(tensor.counts));
    tensors.push_back(std::move(row));
  }
  return {{"ok", !result.overflowed},
          {"target", result.path},
          {"source_fingerprint", ToHex(result.source_fingerprint)},
          {"files", result.files},
          {"bytes_read", result.bytes_read},
          {"bytes_written", result.bytes_written},
          {"seconds", seconds},
          {"peak_memory_bytes", PeakMemoryBytes()},
          {"total", ToJson(TotalOf(result))},
          {"tensors", std::move(tensors)}};
}

// The tensors that lost most: overflow first, then what became subnormal or zero.
void PrintLosses(const StripResult& result) {
  std::vector<const StrippedTensor*> lossy;
  for (const StrippedTensor& tensor : result.tensors) {
    const CastCounts& c = tensor.counts;
    if (c.overflowed + c.subnormal + c.underflowed + c.nonfinite > 0) lossy.push_back(&tensor);
  }
  std::ranges::stable_sort(lossy, std::greater(), [](const StrippedTensor* t) {
    return std::tuple(t->counts.overflowed, t->counts.nonfinite, t->counts.underflowed, t->counts.subnormal);
  });
  for (size_t i = 0; i < std::min(lossy.size(), kListedTensors); ++i) {
    const CastCounts& c = lossy[i]->counts;
    fmt::print(
        "  {}: of {} elements {} overflowed, {} subnormal, {} became zero, {} NaN or infinite before\n",
        lossy[i]->name, c.elements, c.overflowed, c.subnormal, c.underflowed, c.nonfinite);
  }
  if (lossy.size() > kListedTensors)
    fmt::print("  and {} more; --json lists all\n", lossy.size() - kListedTensors);
}

void PrintText(const CheckpointSource& source, const StripArguments& arguments, const StripResult& result,
               double seconds) {
  if (!result.overflowed)
    fmt::print("{} -> {}: {} tensors, {} in {} files, {}, peak memory {}\n", source.directory(), result.path,
               result.tensors.size(), HumanBytes(static_cast<double>(result.bytes_written)), result.files,
               HumanSeconds(seconds), HumanBytes(static_cast<double>(PeakMemoryBytes())));
  const CastCounts total = TotalOf(result);
  fmt::print("{} elements to {}: {} overflowed, {} subnormal, {} became zero, {} NaN or infinite before\n",
             total.elements, Name(arguments.options.dtype), total.overflowed, total.subnormal,
             total.underflowed, total.nonfinite);
  PrintLosses(result);
}

Result<int> RunStrip(const StripArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenAnyCkpt(arguments.source));
  StripOptions options = arguments.options;
  if (arguments.saturate) options.on_overflow = OnOverflow::kSaturate;
  CAIRN_ASSIGN_OR_RETURN(const StripCost cost, EstimateStrip(opened.source(), options));
  if (arguments.dry_run) {
    CAIRN_RETURN_IF_ERROR(PrintDryRun(
        opened.source(), {cost.read_bytes, cost.file_bytes, cost.moved_bytes, cost.files, cost.peak_memory},
        arguments.json));
    return kExitDone;
  }
  const auto start = std::chrono::steady_clock::now();
  Result<StripResult> result = [&] {
    Progress progress("stripping", cost.moved_bytes, !arguments.json);
    options.progress = [&](uint64_t done) { progress.Update(done); };
    return Strip(FileSystem::Posix(), opened.source(), arguments.target, options);
  }();
  if (!result.ok()) return result.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (arguments.json)
    PrintJson(ToJson(*result, seconds.count()));
  else
    PrintText(opened.source(), arguments, *result, seconds.count());
  if (!result->overflowed) return kExitDone;
  PrintProblem(
      fmt::format("{} elements are beyond the range of {}; nothing was written. Choose --dtype bf16, "
                  "--keep-fp32 GLOB or --saturate",
                  TotalOf(*result).overflowed, Name(options.dtype)));
  return kExitCheckFailed;
}

}  // namespace

void AddStripCommand(CLI::App& app, Verb& verb) {
  const auto arguments = std::make_shared<StripArguments>();
  StripOptions& options = arguments->options;
  CLI::App* strip = app.add_subcommand("strip", "take the weights out for release: fp16, bf16 or fp32");
  strip->add_option("SRC", arguments->source, "a step, a run directory, or STORE:RUN@STEP")->required();
  strip
      ->add_option("DST", arguments->target,
                   "new directory; with --format native a run directory for the step")
      ->required();
  strip->add_option("--dtype", options.dtype, "type of the weights (default fp16)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Dtype>{{"fp16", Dtype::kF16}, {"bf16", Dtype::kBF16}, {"fp32", Dtype::kF32}}))
      ->option_text("fp16|bf16|fp32");
  strip
      ->add_option("--format", options.format,
                   "hf: Hugging Face names with config.json (the default); safetensors: canonical names; "
                   "native: a step")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, StripFormat>{{"hf", StripFormat::kHuggingFace},
                                             {"safetensors", StripFormat::kSafetensors},
                                             {"native", StripFormat::kNative}}))
      ->option_text("hf|safetensors|native");
  strip
      ->add_option("--max-shard-size", options.max_file_bytes,
                   "of one safetensors file, like 5GB (default 50GB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->option_text("SIZE");
  strip->add_option("--keep-fp32", options.keep_fp32, "tensors that stay fp32, like '*norm*'; repeatable")
      ->allow_extra_args(false)
      ->option_text("GLOB");
  strip->add_flag("--saturate", arguments->saturate,
                  "values beyond the range become the largest finite number");
  AddWriterFlags(*strip, options.writer);
  strip->add_flag("--dry-run", arguments->dry_run, "say bytes, files, memory and time; write nothing");
  strip->add_flag("--json", arguments->json, "print facts and every tensor's counts as JSON");
  strip->footer("Each weight comes from its fp32 master where there is one, rounded to nearest even.\n\n" +
                HelpFooter("cairn strip runs/gpt release/gpt-fp16 --dtype fp16",
                           "finite values would become infinite; nothing was written"));
  strip->callback([arguments, &verb] { verb = [arguments] { return RunStrip(*arguments); }; });
}

}  // namespace cairn
