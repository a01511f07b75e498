// The checks of `cairn doctor`: each examines one fact and returns one row. If the fact is not available, the
// row says why; it never guesses.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/io/mount_points.h"
#include "ckpt/step/dir_mark.h"
#include "tools/doctor/finding.h"

namespace cairn {

struct Examined {
  FileSystem& fs;
  std::string directory;
  Mount mount;        // that `directory` lies on
  std::string probe;  // an empty directory in it, for files of ProbeFiles(); removed afterwards
};

// nullopt: nothing to report.
using DoctorCheck = std::optional<Finding> (*)(const Examined& examined);

// The host (host_checks.cc).
std::optional<Finding> CheckDescriptors(const Examined& examined);
std::optional<Finding> CheckLockedMemory(const Examined& examined);
std::optional<Finding> CheckProcesses(const Examined& examined);
std::optional<Finding> CheckMemory(const Examined& examined);
std::optional<Finding> CheckHugePages(const Examined& examined);
std::optional<Finding> CheckSharedMemory(const Examined& examined);
std::optional<Finding> CheckSlurm(const Examined& examined);
std::optional<Finding> CheckMpi(const Examined& examined);

// The directory, by asking the system (place_checks.cc).
std::optional<Finding> CheckFileSystem(const Examined& examined);
std::optional<Finding> CheckNameCaches(const Examined& examined);
std::optional<Finding> CheckAccessTimes(const Examined& examined);
std::optional<Finding> CheckSpace(const Examined& examined);
std::optional<Finding> CheckInodes(const Examined& examined);
std::optional<Finding> CheckQuota(const Examined& examined);
std::optional<Finding> CheckLustreTargets(const Examined& examined);

// The directory, by writing (write_checks.cc). They write into `probe`.
std::optional<Finding> CheckFsync(const Examined& examined);
std::optional<Finding> CheckReadBack(const Examined& examined);
std::optional<Finding> CheckReplace(const Examined& examined);
std::optional<Finding> CheckExchange(const Examined& examined);
std::optional<Finding> CheckLocks(const Examined& examined);
std::optional<Finding> CheckClock(const Examined& examined);
std::optional<Finding> CheckTransfers(const Examined& examined);
std::optional<Finding> CheckDirect(const Examined& examined);

MarkedContents ProbeFiles();

}  // namespace cairn
