#include "ckpt/step/partial_dir.h"

#include <random>

#include "ckpt/model/layout.h"

namespace cairn {
std::string ParentDir(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  const size_t slash = end == std::string::npos ? end : path.find_last_of('/', end);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string NewNonce() {
  std::random_device random;
  return fmt::format("{:08x}", static_cast<uint32_t>(random()));
}

std::string NearestDir(FileSystem& fs, const std::string& path) {
  std::string at = path;
  while (!fs.Stat(at).ok() && at != "." && at != "/") at = ParentDir(at);
  return at;
}

Status CheckFreeSpace(FileSystem& fs, const std::string& path, uint64_t need_bytes) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t have_bytes, fs.FreeBytes(NearestDir(fs, path)));
  if (need_bytes <= have_bytes) return OkStatus();
  return NoSpace("{}: needs about {} bytes, {} are free; free some space or choose another place", path,
                 need_bytes, have_bytes);
}

Result<PartialDir> PartialDir::Make(FileSystem& fs, const std::string& path) {
  if (fs.Stat(path).ok()) return AlreadyExists("{} is there already; choose another place", path);
  PartialDir made;
  made.fs_ = &fs;
  made.path_ = path;
  for (std::string at = ParentDir(path); !fs.Stat(at).ok() && at != "." && at != "/"; at = ParentDir(at))
    made.made_.insert(made.made_.begin(), at);
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, path));
  return made;
}

PartialDir PartialDir::Adopt(FileSystem& fs, const std::string& path) {
  PartialDir adopted;
  adopted.fs_ = &fs;
  adopted.path_ = path;
  return adopted;
}

PartialDir::~PartialDir() {
  if (fs_ == nullptr) return;
  (void)RemoveTree(*fs_, path_);
  for (auto directory = made_.rbegin(); directory != made_.rend(); ++directory) {
    (void)fs_->RemoveFile(JoinPath(*directory, kLockName));
    (void)fs_->RemoveDir(*directory);
  }
}

}  // namespace cairn
