// The mount points below a directory. Files of another mount are not the directory's own, and may be needed
// elsewhere.
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

}  // namespace cairn
