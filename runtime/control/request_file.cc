#include "runtime/control/request_file.h"

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
  if (path_.empty() || stays_) return;
  const Status removed = RemoveIfThere(FileSystem::Posix(), path_);
  if (removed.ok()) return;
  stays_ = true;
  Say(
      fmt::format("--save-now-file {}: saved, but cannot remove it ({}); it is ignored until you remove it "
                  "and make it again",
                  path_, removed.message()));
}

bool FindKillSwitch(const std::string& path) {
  const bool found = !path.empty() && FileSystem::Posix().Stat(path).ok();
  if (found) Print("Detected kill switch at " + path + ". Exiting\n");
  return found;
}

}  // namespace cairn
