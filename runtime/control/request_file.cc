#include "runtime/control/request_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ckpt/io/file_system.h"
#include "runtime/control/console.h"

namespace cairn {

bool SaveNowFile::Asks() {
  if (path_.empty()) return false;
  const Status found = FileSystem::Posix().Stat(path_).status();
  if (found.ok()) return !stays_;
  if (found.kind() == StatusKind::kNotFound) stays_ = false;
  return false;
}

void SaveNowFile::Served() {
  if (path_.empty() || stays_ || ::unlink(path_.c_str()) == 0 || errno == ENOENT) return;
  stays_ = true;
  Say(
      fmt::format("--save-now-file {}: saved, but cannot remove it: {}; it is ignored until you remove it "
                  "and make it again",
                  path_, std::strerror(errno)));
}

bool FindKillSwitch(const std::string& path) {
  const bool found = !path.empty() && FileSystem::Posix().Stat(path).ok();
  if (found) Print("Detected kill switch at " + path + ". Exiting\n");
  return found;
}

}  // namespace cairn
