// The report of a scheduled run, for monitoring: a JSON status file, Prometheus metrics, a hook.
#pragma once

#include <string>

#include "ckpt/io/file_system.h"
#include "tools/archive/policy/policy.h"
#include "tools/archive/schedule/team.h"

namespace cairn {

// What all processes of the run did, and what it found then.
struct RunReport : ShareResult {
  int64_t last_success_unix_seconds = 0;  // of this run, or of one before it
  // This run's, proof included; the last one's that stored, if this one did not.
  double bytes_per_second = 0;
  double nearest_purge_days = 0;  // of what waits; infinite if nothing does
  uint64_t waiting = 0;           // steps that are asked for and not stored yet
  uint64_t store_bytes = 0;
  uint64_t store_files = 0;

  bool ok() const { return failures.empty(); }
};

// Puts both files in their places whole (new name, sync, rename). Errors: those of the disk.
Status WriteReport(FileSystem& fs, const Policy& policy, const RunReport& report);
// Reads the status file of the last run; a field that it does not have is zero.
RunReport ReadLastReport(FileSystem& fs, const Policy& policy);

// Prometheus' textfile format. `store` is the label.
std::string MetricsText(const RunReport& report, const std::string& store);

// Runs the policy's on_failure command with CAIRN_STATUS (the status file) and CAIRN_FAILURE (the first
// failure) in its environment, if the run failed. Errors: IoError if the command fails.
Status RunFailureHook(const Policy& policy, const RunReport& report);

}  // namespace cairn
