#include "ckpt/io/replace_file.h"

namespace cairn {

Status WriteAndRename(FileSystem& fs, const std::string& temporary, const std::string& path,
                      std::string_view bytes) {
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, temporary, bytes));
  const Status renamed = fs.Rename(temporary, path);
  if (!renamed.ok()) (void)fs.RemoveFile(temporary);
  return renamed;
}

Status ReplaceSmallFile(FileSystem& fs, const std::string& path, std::string_view bytes) {
  const std::string partial = path + std::string(kPartialSuffix);
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial));
  CAIRN_RETURN_IF_ERROR(WriteAndRename(fs, partial, path, bytes));
  return fs.SyncDir(ParentDir(path));
}

}  // namespace cairn
