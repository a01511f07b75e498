#include "tools/archive/tar/sidecar.h"

#include "ckpt/base/digest.h"
#include "ckpt/step/partial_dir.h"
#include "tools/archive/tar/record.h"

namespace cairn {

std::string SidecarText(const nlohmann::json& value) {
  return value.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string SignedSidecarText(nlohmann::json root) {
  root["digest"] = ToHex(DigestOf(SidecarText(root)));
  return SidecarText(root);
}

Status WriteSidecar(FileSystem& fs, const std::string& path, const std::string& text) {
  const std::string partial = path + std::string(kPartialSuffix);
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial));  // of a run that was killed
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, partial, text));
  if (const Status status = fs.Rename(partial, path); !status.ok()) {
    (void)fs.RemoveFile(partial);
    return status;
  }
  return fs.SyncDir(ParentDir(path));
}

}  // namespace cairn
