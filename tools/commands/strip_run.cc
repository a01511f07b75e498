// A dry run to a type reads every value to find overflows. An overflow is the result of a check, not an
// error: the losses are printed as always, and nothing was written. CommandOf leaves out flags that do not
// change the result, since the command is stored with it: the same request makes the same bytes.

#include "tools/commands/strip_run.h"

#include <algorithm>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/proc_memory.h"
#include "tools/cli/dry_run.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/cli/stop_signals.h"
#include "tools/source/step_tokenizer.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr size_t kListedTensors = 10;  // tensors with losses that are listed; --json has all

// Flags that do not change the result, and paths.
constexpr const char* kSilentFlags[] = {"--jobs",         "--max-memory",       "--direct",    "--json",
                                        "--config",       "--dry-run",          "--tokenizer", "--with",
                                        "--no-checksums", "--no-rounding-check"};

CastCounts TotalOf(const TransferResult& result) {
  CastCounts total;
  for (const TransferredTensor& tensor : result.tensors) total += tensor.counts;
  return total;
}

ordered_json ToJson(const CastCounts& counts) {
  return {{"elements", counts.elements},
          {"overflowed", counts.overflowed},
          {"subnormal", counts.subnormal},
          {"underflowed", counts.underflowed},
          {"nonfinite", counts.nonfinite}};
}

ordered_json ToJson(const Quantization& quantized) {
  return {{"weights", quantized.weights},
          {"relative_norm", quantized.error.relative_norm()},
          {"of_largest_in_block", quantized.error.of_largest},
          {"worst", {{"name", quantized.worst_name}, {"relative_norm", quantized.worst.relative_norm()}}}};
}

ordered_json ToJson(const OpenedSource& opened, const TimedTransfer& done) {
  const CheckpointSource& source = opened.source();
  const TransferResult& result = done.result;
  ordered_json tensors = ordered_json::array();
  for (const TransferredTensor& tensor : result.tensors) {
    ordered_json row = {{"name", tensor.name},
                        {"source", Name(tensor.source)},
                        {"from", Name(tensor.from)},
                        {"to", Name(tensor.to)}};
    row.update(ToJson(tensor.counts));
    tensors.push_back(std::move(row));
  }
  ordered_json facts = TransferFacts(opened, done);
  facts.update({{"ok", !result.overflowed},
                {"source_fingerprint", ToHex(result.fingerprints.overall)},
                {"states_left_out", OrphanStates(source.catalog())},
                {"total", ToJson(TotalOf(result))},
                {"tensors", std::move(tensors)}});
  if (result.quantization.weights > 0) facts["quantized"] = ToJson(result.quantization);
  return facts;
}

// "3 overflowed, 1 became zero": the counts that are not 0, or all.
std::string LossText(const CastCounts& counts, bool all = false) {
  std::string text;
  for (const auto& [count, what] :
       {std::pair(counts.overflowed, "overflowed"), std::pair(counts.subnormal, "subnormal"),
        std::pair(counts.underflowed, "became zero"), std::pair(counts.nonfinite, "NaN or infinite before")})
    if (all || count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  return text;
}

// The tensors that lost most: overflow first, then what became subnormal or zero.
void PrintLosses(const TransferResult& result) {
  std::vector<const TransferredTensor*> lossy;
  for (const TransferredTensor& tensor : result.tensors)
    if (!LossText(tensor.counts).empty()) lossy.push_back(&tensor);
  std::ranges::stable_sort(lossy, std::greater(), [](const TransferredTensor* t) {
    return std::tuple(t->counts.overflowed, t->counts.nonfinite, t->counts.underflowed, t->counts.subnormal);
  });
  for (size_t i = 0; i < std::min(lossy.size(), kListedTensors); ++i) {
    const CastCounts& c = lossy[i]->counts;
    PrintLine("  {}: of {} elements {}", lossy[i]->name, c.elements, LossText(c));
  }
  if (lossy.size() > kListedTensors)
    fmt::print("  and {} more; --json lists all\n", lossy.size() - kListedTensors);
}

void PrintError(const Quantization& quantized) {
  if (quantized.weights == 0) return;
  PrintLine(
      "{} to fp8: |W - Q| / |W| is {:.3f} %, at worst {:.3f} % ({}); each number within {:.3f} % of the "
      "largest in its block",
      Counted(quantized.weights, "weight"), 100 * quantized.error.relative_norm(),
      100 * quantized.worst.relative_norm(), quantized.worst_name, 100 * quantized.error.of_largest);
}

// Then the fingerprint of what was read is what `cairn fingerprint SRC` prints.
bool ReadsAll(const CheckpointSource& source, const TransferResult& result) {
  return result.fingerprints.tensors.size() ==
         static_cast<size_t>(std::ranges::count_if(
             source.catalog().tensors, [](const TensorEntry& tensor) { return !IsOpaque(tensor.role); }));
}

std::string TypeName(const StripOptions& options) {
  return options.dtype ? std::string(Name(*options.dtype)) : "their stored types";
}

void PrintStripText(const OpenedSource& opened, const StripOptions& options, const TimedTransfer& done) {
  const CheckpointSource& source = opened.source();
  const auto& [result, seconds] = done;
  if (!result.overflowed)
    fmt::print("{} -> {}: {}, {} in {}, {}, peak memory {}\n", source.name(), result.path,
               Counted(result.fingerprints.tensors.size(), "tensor"),
               HumanBytes(static_cast<double>(result.bytes_written)), Counted(result.files, "file"),
               HumanSeconds(seconds), HumanBytes(static_cast<double>(PeakMemoryBytes())));
  PrintAccount(opened);
  if (const auto alone = OrphanStates(source.catalog()); !alone.empty())
    PrintLine("left out: the optimizer's states of {} without a weight of that name, as {}",
              Counted(alone.size(), "tensor"), *alone.begin());
  const CastCounts total = TotalOf(result);
  if (options.dtype) {
    fmt::print("{} elements to {}: {}\n", total.elements, TypeName(options), LossText(total, /*all=*/true));
    PrintLosses(result);
  } else {
    fmt::print("{} elements in {}, bit for bit\n", total.elements, TypeName(options));
  }
  PrintError(result.quantization);
  if (!result.overflowed)
    PrintLine("read back and equal: {} {}",
              ReadsAll(source, result) ? "source fingerprint" : "fingerprint of the weights read",
              ToHex(result.fingerprints.overall));
}

void PrintOverflow(const TransferResult& result, const StripOptions& options, std::string_view outcome) {
  PrintProblem(
      fmt::format("{} elements are beyond the range of {}; {}. Choose --dtype bf16, --keep-fp32 GLOB or "
                  "--saturate",
                  TotalOf(result).overflowed, TypeName(options), outcome));
}

// If a type is given, reads all values: only they show whether any overflows, and how far fp8 is from them.
Result<int> DryRun(Transfer transfer, const StripFlags& flags) {
  CAIRN_ASSIGN_OR_RETURN(const TransferCost cost, transfer.Cost());
  const bool json = flags.transfer.json;
  TransferResult tried;
  if (flags.options.dtype || transfer.quantization) {
    Progress progress("looking for overflows", cost.read_bytes, !json);
    transfer.progress = [&](uint64_t done) { progress.Update(done); };
    CAIRN_ASSIGN_OR_RETURN(tried, transfer.CountOnly());
    if (!json) PrintError(tried.quantization);
  }
  const uint64_t overflowed = tried.overflowed ? TotalOf(tried).overflowed : 0;
  CAIRN_RETURN_IF_ERROR(PrintDryRun(transfer.source, cost, flags.transfer.target, json, overflowed));
  if (!tried.overflowed) return kExitDone;
  if (!json) PrintLosses(tried);
  PrintOverflow(tried, flags.options, "nothing would be written");
  return kExitCheckFailed;
}

}  // namespace

void AddStripFlags(CLI::App& verb, StripFlags& flags) {
  StripOptions& options = flags.options;
  AddSize(verb, "--max-shard-size", options.max_file_bytes,
          "largest size of one safetensors file, like 5GB (default 50GB)");
  verb.add_option("--keep-fp32", options.keep_fp32, "tensors to store as fp32, like '*norm*'; repeatable")
      ->allow_extra_args(false)
      ->option_text("GLOB");
  AddChoice<bool>(
      verb, "--quantize", options.quantize,
      "weights of linear layers, in fp8 with a scale for each block of 128 x 128, as DeepSeek-V3's "
      "releases have them; only for hf. Prints the error",
      {{"fp8", true}});
  verb.add_flag("--saturate", flags.saturate, "values beyond the range become the largest finite number");
  verb.add_option(
          "--tokenizer", flags.tokenizer,
          "directory with the tokenizer files to copy along with the weights; default: those of SRC, if any")
      ->option_text("DIR");
}

std::string CommandOf(const CLI::App& verb, const std::map<std::string, std::string>& defaults) {
  std::string command = "cairn " + verb.get_name();
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    if (option->get_positional() || std::ranges::count(kSilentFlags, name) > 0) continue;
    if (option->count() == 0) {
      if (const auto found = defaults.find(name); found != defaults.end())
        command += fmt::format(" {} {}", name, found->second);
      continue;
    }
    for (const std::string& value : option->results())
      command += option->get_expected_min() == 0 ? " " + name : fmt::format(" {} {}", name, value);
  }
  return command;
}

Result<FileCopies> ChooseFilesBeside(const OpenedSource& opened, const StripFlags& flags) {
  const bool step = flags.options.format->is_native();
  if (step && !flags.with.empty())
    return InvalidArgument("--with: a step holds no other files; choose --format hf or safetensors");
  if (flags.tokenizer.empty() && flags.with.empty())
    return step ? TokenizerForStep(opened) : TokenizerOf(opened);
  FileSystem& fs = FileSystem::Posix();
  FileCopies files;
  for (const std::string& file : flags.with) files[std::string(LastName(file))] = {&fs, file};
  CAIRN_ASSIGN_OR_RETURN(FileCopies tokenizer,
                         flags.tokenizer.empty() ? TokenizerOf(opened) : TokenizerFiles(fs, flags.tokenizer));
  files.merge(tokenizer);
  CAIRN_ASSIGN_OR_RETURN(FileCopies others, LicenceAndCode(opened));
  files.merge(others);
  return files;
}

Result<int> RunStrip(const OpenedSource& opened, const StripFlags& flags) {
  CheckpointSource& source = opened.source();
  StripOptions options = flags.options;
  options.writer = flags.transfer.writer;
  if (flags.saturate) options.on_overflow = OnOverflow::kSaturate;
  CAIRN_ASSIGN_OR_RETURN(FileCopies beside, ChooseFilesBeside(opened, flags));
  (options.format->is_native() ? options.writer.beside : options.copies) = std::move(beside);
  CAIRN_ASSIGN_OR_RETURN(Transfer transfer, PlanStrip(source, options));
  if (flags.transfer.dry_run) return DryRun(transfer, flags);
  RemoveOutputsAtSignals();
  CAIRN_ASSIGN_OR_RETURN(const auto done,
                         RunTransfer("writing weights", std::move(transfer), flags.transfer));
  const TransferResult& result = done->result;
  if (flags.transfer.json)
    PrintJson(ToJson(opened, *done));
  else
    PrintStripText(opened, options, *done);
  if (!result.overflowed) {
    for (const std::string& note : result.notes) PrintProblem("note: " + note);
    if (options.format->has_tokenizer && !HasTokenizer(options.copies))
      PrintProblem(fmt::format("note: {} has no tokenizer, so {} has none; --tokenizer DIR adds one",
                               source.name(), result.path));
    return kExitDone;
  }
  PrintOverflow(result, options, "nothing was written");
  return kExitCheckFailed;
}

}  // namespace cairn
