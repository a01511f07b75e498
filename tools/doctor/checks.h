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
using DoctorCheck = std::optional<Finding>(const Examined& examined);

// The host (host_checks.cc).
DoctorCheck CheckDescriptors, CheckLockedMemory, CheckProcesses, CheckMemory, CheckHugePages,
    CheckSharedMemory, CheckSlurm, CheckMpi;

// The directory, by asking the system (place_checks.cc).
DoctorCheck CheckFileSystem, CheckNameCaches, CheckAccessTimes, CheckSpace, CheckInodes, CheckQuota,
    CheckLustreTargets;

// The directory, by writing (write_checks.cc). They write into `probe`.
DoctorCheck CheckFsync, CheckReadBack, CheckReplace, CheckExchange, CheckLocks, CheckClock, CheckTransfers,
    CheckDirect;

MarkedContents ProbeFiles();

}  // namespace cairn
