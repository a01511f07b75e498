// The status file is also the memory between runs: the next one takes the last success and the measured
// bandwidth from it. Both files are written under new names, synced and renamed, because a monitor may read
// them at any time.

#include "tools/archive/policy/policy_report.h"

#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "ckpt/io/replace_file.h"
#include "ckpt/step/partial_dir.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMaxStatusBytes = 16 << 20;

Status WriteWhole(FileSystem& fs, const std::string& path, const std::string& text) {
  const std::string parent = ParentDir(path);
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, parent));
  CAIRN_RETURN_IF_ERROR(
      WriteAndRename(fs, fmt::format("{}.{}{}", path, NewNonce(), kPartialSuffix), path, text));
  return fs.SyncDir(parent);
}

}  // namespace

std::string MetricsText(const RunReport& r, const std::string& store) {
  std::string label;
  for (const char c : store) {
    if (c == '\\' || c == '"' || c == '\n') label.push_back('\\');
    label.push_back(c == '\n' ? 'n' : c);
  }
  std::string text;
  const auto add = [&](const char* name, const char* help, double value) {
    const std::string shown = std::isinf(value) ? "+Inf" : fmt::format("{}", value);
    text +=
        fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n{0}{{store=\"{2}\"}} {3}\n", name, help, label, shown);
  };
  const auto number = [](auto value) { return static_cast<double>(value); };
  add("cairn_archive_success", "1 if the last run met its policy", r.ok() ? 1 : 0);
  add("cairn_archive_last_success_timestamp_seconds", "End of the last run that met its policy",
      number(r.last_success_unix_seconds));
  add("cairn_archive_last_run_timestamp_seconds", "End of the last run", number(r.finished_unix_seconds));
  add("cairn_archive_stored_bytes", "Bytes of sources that the last run stored", number(r.stored_bytes));
  add("cairn_archive_store_bytes", "Bytes that the store holds", number(r.store_bytes));
  add("cairn_archive_store_files", "Files that the store holds", number(r.store_files));
  add("cairn_archive_waiting_steps", "Steps that the policy asks for and that are not stored",
      number(r.waiting));
  add("cairn_archive_nearest_purge_days", "Days until the purge takes one of those; +Inf if there is none",
      r.nearest_purge_days);
  return text;
}

Status WriteReport(FileSystem& fs, const Policy& policy, const RunReport& r) {
  ordered_json json = {{"verb", "run"},
                       {"ok", r.ok()},
                       {"store", policy.store},
                       {"started_unix_seconds", r.started_unix_seconds},
                       {"finished_unix_seconds", r.finished_unix_seconds},
                       {"last_success_unix_seconds", r.last_success_unix_seconds},
                       {"stored_bytes", r.stored_bytes},
                       {"stored_members", r.stored_members},
                       {"bytes_per_second", r.bytes_per_second},
                       {"waiting", r.waiting},
                       {"store_bytes", r.store_bytes},
                       {"store_files", r.store_files},
                       {"failures", r.failures}};
  if (std::isfinite(r.nearest_purge_days)) json["nearest_purge_days"] = r.nearest_purge_days;
  const std::string text = json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  CAIRN_RETURN_IF_ERROR(WriteWhole(fs, policy.status, text));
  return policy.metrics.empty() ? OkStatus() : WriteWhole(fs, policy.metrics, MetricsText(r, policy.store));
}

RunReport ReadLastReport(FileSystem& fs, const Policy& policy) {
  RunReport report;
  const Result<std::string> text = ReadSmallFile(fs, policy.status, kMaxStatusBytes);
  if (!text.ok()) return report;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* name) {
    const auto found = json.is_object() ? json.find(name) : json.end();
    return json.is_object() && found != json.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  report.last_success_unix_seconds = static_cast<int64_t>(number("last_success_unix_seconds"));
  report.bytes_per_second = number("bytes_per_second");
  return report;
}

Status RunFailureHook(const Policy& policy, const RunReport& report) {
  if (policy.on_failure.empty() || report.ok()) return OkStatus();
  ::setenv("CAIRN_STATUS", policy.status.c_str(), 1);
  ::setenv("CAIRN_FAILURE", report.failures.front().c_str(), 1);
  const int result = std::system(policy.on_failure.c_str());
  const int code = WIFEXITED(result) ? WEXITSTATUS(result) : 1;
  return code == 0 ? OkStatus() : IoError("on_failure ended with status {}", code);
}

}  // namespace cairn
