// The report of a scheduled run, for monitoring: a JSON status file, Prometheus metrics, a hook.
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "tools/archive/policy/policy.h"

namespace cairn {

struct RunReport {
  int64_t started_unix_seconds = 0;
  int64_t finished_unix_seconds = 0;
  int64_t last_success_unix_seconds = 0;  // of this run, or of one before it
  uint64_t stored_bytes = 0;              // by this run
  uint64_t stored_members = 0;
  double bytes_per_second =
      0;  // of this run, proof included; of the last one that stored, if this one did not
  double nearest_purge_days = 0;  // of what waits; infinite if nothing does
  uint64_t waiting = 0;           // steps that are asked for and not stored yet
  uint64_t store_bytes = 0;
  uint64_t store_files = 0;
  std::vector<std::string> failures;  // one line each

  bool ok() const { return failures.empty(); }
};

// Puts both files in their places whole (new name, sync, rename). Errors: those of the disk.
Status WriteReport(FileSystem& fs, const Policy& policy, const RunReport& report);
// Reads the status file of the last run; a field that it does not have is zero.
RunReport ReadLastReport(FileSystem& fs, const Policy& policy);

// Prometheus' textfile format. `store` is the label.
std::string MetricsText(const RunReport& report, const std::string& store);

// Runs the policy's on_failure command with CAIRN_STATUS (the status file) and CAIRN_FAILURE (the first
// failure) in its environment. Returns its exit status; 0 if there is none.
int RunFailureHook(const Policy& policy, const RunReport& report);

}  // namespace cairn
