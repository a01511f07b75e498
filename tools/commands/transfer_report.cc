#include "tools/commands/transfer_report.h"

#include "ckpt/base/proc_memory.h"
#include "ckpt/base/stopwatch.h"
#include "convert/foreign/account.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/cli/writer_flags.h"

namespace cairn {
namespace {

constexpr size_t kListedNames = 8;  // --json has all

std::string SizeText(const nlohmann::json& bytes) { return HumanBytes(bytes.get<double>()); }

template <typename Names>
void PrintNames(std::string_view what, const Names& names) {
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kListedNames); ++i)
    list += (i == 0 ? "" : ", ") + std::string(names[i]);
  if (names.size() > kListedNames)
    list += fmt::format(" and {} more (--json lists them)", names.size() - kListedNames);
  if (!names.empty()) PrintLine("{}: {}", what, list);
}

}  // namespace

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

Result<TimedTransfer> RunTimed(std::string_view what, uint64_t bytes, bool shown, Transfer transfer,
                               const std::string& target) {
  PrepareToWrite();
  const Stopwatch watch;
  Progress bar(std::string(what), bytes, shown);
  transfer.progress = [&](uint64_t done) { bar.Update(done); };
  CAIRN_ASSIGN_OR_RETURN(TransferResult result, transfer.Run(FileSystem::Posix(), target));
  return TimedTransfer{std::move(result), watch.Seconds()};
}

nlohmann::ordered_json TransferFacts(const OpenedSource& opened, const TransferResult& result,
                                     double seconds) {
  return {{"target", result.path},
          {"account", AccountOf(opened.source())},
          {"left_behind", opened.LeftBehind()},
          {"files", result.files},
          {"bytes_read", result.bytes_read},
          {"bytes_written", result.bytes_written},
          {"seconds", seconds},
          {"peak_memory_bytes", PeakMemoryBytes()}};
}

void PrintTransfer(const OpenedSource& opened, const TransferResult& result, double seconds,
                   std::string_view form, std::string_view count) {
  const CheckpointSource& source = opened.source();
  const auto written = static_cast<double>(result.bytes_written);
  fmt::print("{} ({})\n-> {} ({})\n", source.name(), ToString(source.manifest().topology), result.path, form);
  PrintAccount(opened);
  fmt::print("{}{} in {}, {} ({}/s), peak memory {}\n", count, HumanBytes(written),
             Counted(result.files, "file"), HumanSeconds(seconds),
             HumanBytes(written / std::max(seconds, 1e-9)), HumanBytes(PeakMemoryBytes()));
}

}  // namespace cairn
