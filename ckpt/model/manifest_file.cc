#include "ckpt/model/manifest_file.h"

#include "ckpt/model/layout.h"

namespace cairn {

Result<Manifest> ReadManifest(FileSystem& fs, const std::string& step_dir, Digest* digest) {
  const std::string path = JoinPath(step_dir, kManifestName);
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, kMaxManifestBytes));
  if (digest != nullptr) *digest = DigestOf(text);
  Result<Manifest> manifest = DecodeManifest(text);
  return manifest.ok() ? std::move(manifest) : manifest.status().WithContext(path);
}

}  // namespace cairn
