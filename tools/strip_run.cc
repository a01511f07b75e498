#include "tools/strip_run.h"

#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "ckpt/canonical_path.h"
#include "tools/exit_code.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/source_flags.h"
#include "tools/writer_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr size_t kListedTensors = 10;  // of those that lost something; --json has all

// What makes a tokenizer, in any of transformers' forms.
constexpr const char* kTokenizerFiles[] = {"tokenizer*.json", "tokenizer.model",   "vocab.json",
                                           "merges.txt",      "added_tokens.json", "special_tokens_map.json",
                                           "chat_template*"};
// Flags that change how the work is done, not what comes out.
constexpr const char* kSilentFlags[] = {"--jobs", "--max-memory", "--direct",
                                        "--json", "--dry-run",    "--tokenizer"};

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

std::string TypeName(const StripOptions& options) {
  return options.dtype ? std::string(Name(*options.dtype)) : "their stored types";
}

void PrintText(const CheckpointSource& source, const StripOptions& options, const StripResult& result,
               double seconds) {
  if (!result.overflowed)
    fmt::print("{} -> {}: {} tensors, {} in {} files, {}, peak memory {}\n", source.directory(), result.path,
               result.tensors.size(), HumanBytes(static_cast<double>(result.bytes_written)), result.files,
               HumanSeconds(seconds), HumanBytes(static_cast<double>(PeakMemoryBytes())));
  const CastCounts total = TotalOf(result);
  if (options.dtype) {
    fmt::print("{} elements to {}: {} overflowed, {} subnormal, {} became zero, {} NaN or infinite before\n",
               total.elements, TypeName(options), total.overflowed, total.subnormal, total.underflowed,
               total.nonfinite);
    PrintLosses(result);
  } else {
    fmt::print("{} elements in {}, bit for bit\n", total.elements, TypeName(options));
  }
  if (!result.overflowed)
    fmt::print("read back and equal: source fingerprint {}\n", ToHex(result.source_fingerprint));
}

// The directory that a model's own files lie in: of a snapshot in a Hugging Face cache
// (MODEL/snapshots/REVISION, whose files are links into MODEL/blobs) the model's.
std::string OwnPlace(const std::string& directory) {
  const std::filesystem::path place = CanonicalPath(directory);
  return place.parent_path().filename() == "snapshots" ? place.parent_path().parent_path() : place;
}

// The tokenizer's files in `directory`. A release must not carry what lies elsewhere on this machine. Errors:
// NotFound where there are none; InvalidArgument where one leads out of the model's own directory, or is not
// a file.
Result<FileCopies> TokenizerFiles(FileSystem& fs, const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  FileCopies files;
  for (const std::string& name : names) {
    const auto matches = [&](const char* glob) { return fnmatch(glob, name.c_str(), 0) == 0; };
    if (!std::ranges::any_of(kTokenizerFiles, matches)) continue;
    const std::string path = JoinPath(directory, name);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
    if (info.is_directory()) continue;
    if (info.kind != FileKind::kFile) return InvalidArgument("{} is not a regular file; move it away", path);
    if (!CanonicalPath(path).starts_with(JoinPath(OwnPlace(directory), "")))
      return InvalidArgument(
          "{} leads out of the model's directory, to {}; put a copy there if it is to be published", path,
          CanonicalPath(path));
    files[name] = {&fs, path};
  }
  if (files.empty()) return NotFound("{}: no tokenizer files there", directory);
  return files;
}

// That which was asked for, or that of the source's directory. A native step has no place for one.
Result<FileCopies> ChooseTokenizer(FileSystem& fs, const CheckpointSource& source, const StripFlags& flags) {
  if (!flags.tokenizer.empty()) return TokenizerFiles(FileSystem::Posix(), flags.tokenizer);
  if (flags.options.format == StripFormat::kNative) return FileCopies{};
  Result<FileCopies> found = TokenizerFiles(fs, source.directory());
  return found.status().kind() == StatusKind::kNotFound ? FileCopies{} : std::move(found);
}

}  // namespace

void AddStripFlags(CLI::App& verb, StripFlags& flags) {
  StripOptions& options = flags.options;
  verb.add_option("--max-shard-size", options.max_file_bytes,
                  "of one safetensors file, like 5GB (default 50GB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->option_text("SIZE");
  verb.add_option("--keep-fp32", options.keep_fp32,
                  "tensors that are fp32 in the result, like '*norm*'; repeatable")
      ->allow_extra_args(false)
      ->option_text("GLOB");
  verb.add_flag("--saturate", flags.saturate, "values beyond the range become the largest finite number");
  verb.add_option("--tokenizer", flags.tokenizer,
                  "directory whose tokenizer files go beside the weights; that of SRC where it has one")
      ->option_text("DIR");
  AddSourceFlags(verb, flags.open);
  AddWriterFlags(verb, options.writer);
  verb.add_flag("--dry-run", flags.dry_run, "say bytes, files, memory and time; write nothing");
  verb.add_flag("--json", flags.json, "print facts and every tensor's counts as JSON");
}

std::string CommandOf(const CLI::App& verb) {
  std::string command = "cairn " + verb.get_name();
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || option->get_positional() || std::ranges::count(kSilentFlags, name) > 0)
      continue;
    for (const std::string& value : option->results())
      command += option->get_expected_min() == 0 ? " " + name : fmt::format(" {} {}", name, value);
  }
  return command;
}

Result<int> RunStrip(FileSystem& fs, CheckpointSource& source, const std::string& target,
                     const StripFlags& flags) {
  StripOptions options = flags.options;
  if (flags.saturate) options.on_overflow = OnOverflow::kSaturate;
  CAIRN_ASSIGN_OR_RETURN(options.copies, ChooseTokenizer(fs, source, flags));
  CAIRN_ASSIGN_OR_RETURN(const StripCost cost, EstimateStrip(source, options));
  if (flags.dry_run) {
    CAIRN_RETURN_IF_ERROR(PrintDryRun(
        source, {cost.read_bytes, cost.file_bytes, cost.moved_bytes, cost.files, cost.peak_memory},
        flags.json));
    return kExitDone;
  }
  const auto start = std::chrono::steady_clock::now();
  Result<StripResult> result = [&] {
    Progress progress("writing weights", cost.moved_bytes, !flags.json);
    options.progress = [&](uint64_t done) { progress.Update(done); };
    return Strip(FileSystem::Posix(), source, target, options);
  }();
  if (!result.ok()) return result.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (flags.json)
    PrintJson(ToJson(*result, seconds.count()));
  else
    PrintText(source, options, *result, seconds.count());
  if (!result->overflowed) return kExitDone;
  PrintProblem(
      fmt::format("{} elements are beyond the range of {}; nothing was written. Choose --dtype bf16, "
                  "--keep-fp32 GLOB or --saturate",
                  TotalOf(*result).overflowed, TypeName(options)));
  return kExitCheckFailed;
}

}  // namespace cairn
