// What the kernel says about mounts. The mount points below a directory: files of another mount are not the
// directory's own, and may be needed elsewhere. Whether locks of a mount exclude other hosts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// The mount points at `directory` (absolute, without links) or below it, files included. `mount_info`: the
// text of /proc/self/mountinfo.
std::vector<std::string> MountPointsIn(std::string_view mount_info, const std::string& directory);

// OK if nothing is mounted at `directory` or below it, bind mounts included, and all `directories` (paths
// below it) lie on the file system of its parent. Errors: InvalidArgument naming what does not.
Status CheckNoMount(const std::string& directory, const std::vector<std::string>& directories = {});

struct Mount {
  std::string point, type;                // empty: /proc does not say
  std::vector<std::string> options = {};  // of the mount, then of its file system
};
// The mount that `directory` (absolute, without links) lies on.
Mount MountOf(std::string_view mount_info, const std::string& directory);
// The same, of any path, for the mounts of this process.
Mount MountOf(const std::string& path);

// Why locks of files on it may exclude only processes of this host: its options, or a file system whose
// options do not tell. Empty if they exclude those of other hosts too, as far as the options tell.
std::string LocalLocksIn(const Mount& mount);
// That of a directory as a warning with a remedy.
std::string LocalLocksWarning(const std::string& directory);

}  // namespace cairn
