#include "tools/commands/transfer_run.h"

#include <malloc.h>
#include <sys/resource.h>

#include "ckpt/base/proc_memory.h"
#include "ckpt/base/short_list.h"
#include "ckpt/base/stopwatch.h"
#include "convert/foreign/account.h"
#include "convert/formats/whole_check.h"
#include "tools/cli/choices.h"
#include "tools/cli/dry_run.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

constexpr size_t kListedNames = 8;  // --json has all

std::string SizeText(const nlohmann::json& bytes) { return HumanBytes(bytes.get<double>()); }

template <typename Names>
std::string NameList(const Names& names) {
  const auto name = [&](size_t i) { return std::string(names[i]); };
  return ShortList(names.size(), name, kListedNames) +
         (names.size() > kListedNames ? " (--json lists them)" : "");
}
template <typename Names>
void PrintNames(std::string_view what, const Names& names) {
  if (!names.empty()) PrintLine("{}: {}", what, NameList(names));
}

// Files of two steps were mixed, or one of them was changed.
void NoteUnlikeMasters(const std::vector<std::string>& weights) {
  if (weights.empty()) return;
  const size_t more = weights.size() - 1;
  PrintProblem(fmt::format("note: {} is not its fp32 master, rounded{}; cairn verify --values shows more",
                           weights[0], more == 0 ? "" : fmt::format(" (and {} more)", more)));
}

// Prepares the process for writing a checkpoint. Raises the limit of open files as far as possible, since all
// files of a target, or all shards of a stage, are open while they are written. Freed buffers go back to the
// system: glibc would keep more and more of them in its heaps.
void PrepareToWrite() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

void AddTransferFlags(CLI::App& verb, TransferFlags& flags, const std::string& source_help,
                      const std::string& target_help) {
  verb.add_option("SRC", flags.source, source_help)->required();
  verb.add_option("DST", flags.target, target_help)->required();
  AddSourceFlags(verb, flags.open);
  AddSourceCheckFlags(verb, flags.checks);
  verb.add_option("--jobs", flags.writer.jobs, "threads that write (default 2)")
      ->check(CLI::Range(1, 256))
      ->option_text("N");
  AddMaxMemory(verb, flags.writer.max_memory);
  AddChoice<Direct>(verb, "--direct", flags.writer.direct, "write past the page cache (default auto)",
                    {{"auto", Direct::kAuto}, {"on", Direct::kOn}, {"off", Direct::kOff}});
  verb.add_flag("--dry-run", flags.dry_run, "print bytes, files, memory and time; write nothing");
  verb.add_flag("--json", flags.json, "print facts as JSON");
}

Result<OpenedSource> OpenChecked(const TransferFlags& flags, bool weights, std::optional<Dtype> cast) {
  OpenOptions open = flags.open;
  if (cast) open.dequantized = Dtype::kF32;  // which is rounded once
  CAIRN_ASSIGN_OR_RETURN(OpenedSource opened, weights
                                                  ? OpenWeights(FileSystem::Posix(), flags.source, open, cast)
                                                  : OpenAnyCkpt(FileSystem::Posix(), flags.source, open));
  CAIRN_RETURN_IF_ERROR(CheckNoExpertIsLost(opened.source(), flags.open.allow));
  if (ReaderOptions used{open, {}}; !opened.system)  // a reader of another checked it
    CAIRN_RETURN_IF_ERROR(weights ? CheckParameters(opened.source(), used)
                                  : CheckWhole(opened.source(), used));
  if (!flags.dry_run)
    CAIRN_RETURN_IF_ERROR(CheckSource(opened, flags.checks, flags.writer.max_memory, flags.json));
  else if (opened.foreign && flags.checks.skip_sums)
    opened.foreign->SkipSums();
  return opened;
}

FileCopies TokenizerForStep(const OpenedSource& opened) {
  Result<FileCopies> files = TokenizerOf(opened);
  if (files.ok()) return *std::move(files);
  PrintProblem(fmt::format("note: the tokenizer is not copied: {}", files.status().message()));
  return {};
}

Result<std::optional<TimedTransfer>> RunTransfer(std::string_view what, Transfer transfer,
                                                 const TransferFlags& flags, bool shown) {
  transfer.compare_masters =
      !transfer.source.native_step() && !flags.checks.first && !flags.checks.skip_rounding;
  CAIRN_ASSIGN_OR_RETURN(const TransferCost cost, transfer.Cost());
  if (flags.dry_run) {
    if (shown) CAIRN_RETURN_IF_ERROR(PrintDryRun(transfer.source, cost, flags.target, flags.json));
    return std::optional<TimedTransfer>();
  }
  PrepareToWrite();
  const Stopwatch watch;
  Progress bar(std::string(what), cost.moved_bytes, shown && !flags.json);
  transfer.progress = [&](uint64_t done) { bar.Update(done); };
  CAIRN_ASSIGN_OR_RETURN(TransferResult result, transfer.Run(FileSystem::Posix(), flags.target));
  NoteUnlikeMasters(result.unlike_masters);
  if (!result.left_behind.empty() && !result.overflowed && shown)
    PrintProblem("note: left behind: " + NameList(result.left_behind));
  return std::optional(TimedTransfer{std::move(result), watch.Seconds()});
}

void PrintAccount(const OpenedSource& source) {
  const nlohmann::json account = AccountOf(source.source());
  if (account.is_null()) return;
  std::string parts;
  for (const auto& [name, part] : account["parts"].items())
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, SizeText(part["bytes"]));
  PrintLine("source: {} in {} storages, all accounted for: {}", SizeText(account["bytes"]),
            account["storages"].get<uint64_t>(), parts);
  PrintNames("in no tensor", account["in_no_tensor"]);
  PrintNames("left behind", source.LeftBehind());
}

nlohmann::ordered_json TransferFacts(const OpenedSource& opened, const TimedTransfer& done) {
  const TransferResult& result = done.result;
  std::vector<std::string> left_behind = opened.LeftBehind();
  left_behind.insert(left_behind.end(), result.left_behind.begin(), result.left_behind.end());
  return {{"target", result.path},
          {"account", AccountOf(opened.source())},
          {"left_behind", std::move(left_behind)},
          {"files", result.files},
          {"bytes_read", result.bytes_read},
          {"bytes_written", result.bytes_written},
          {"seconds", done.seconds},
          {"peak_memory_bytes", PeakMemoryBytes()}};
}

void PrintTransfer(const OpenedSource& opened, const TimedTransfer& done, std::string_view form,
                   std::string_view count) {
  const CheckpointSource& source = opened.source();
  const auto& [result, seconds] = done;
  const auto written = static_cast<double>(result.bytes_written);
  fmt::print("{} ({})\n-> {} ({})\n", source.name(), ToString(source.manifest().topology), result.path, form);
  PrintAccount(opened);
  fmt::print("{}{} in {}, {} ({}/s), peak memory {}\n", count, HumanBytes(written),
             Counted(result.files, "file"), HumanSeconds(seconds),
             HumanBytes(written / std::max(seconds, 1e-9)), HumanBytes(PeakMemoryBytes()));
}

}  // namespace cairn
