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

// Why locks of files in `directory` (absolute, without links) may exclude only processes of this host:
// options of its mount, or a file system whose options do not tell. Empty if they exclude those of other
// hosts too, as far as the options tell.
std::string LocalLocksIn(std::string_view mount_info, const std::string& directory);
// That as a warning with a remedy, for the mounts of this process.
std::string LocalLocksWarning(const std::string& directory);

}  // namespace cairn
