#include "ckpt/io/replace_file.h"

#include <filesystem>

namespace cairn {

Status ReplaceSmallFile(FileSystem& fs, const std::string& path, std::string_view bytes) {
  const std::string partial = path + std::string(kPartialSuffix);
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial));
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, partial, bytes));
  if (const Status status = fs.Rename(partial, path); !status.ok()) {
    (void)fs.RemoveFile(partial);
    return status;
  }
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return fs.SyncDir(directory.empty() ? "." : directory);
}

}  // namespace cairn
