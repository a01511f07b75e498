#include "ckpt/step/find_step.h"

#include <algorithm>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

constexpr int kMostListings = 10;  // of a directory in which other processes keep renaming

}  // namespace

std::pair<std::string, std::string> MarkedParts(std::string_view name, std::string_view mark) {
  if (ParseMarkedDirName(name) != mark) return {};
  return {std::string(name.substr(0, name.find('.'))), std::string(name.substr(name.rfind('-') + 1))};
}

// What one listing misses, because it is renamed meanwhile, the next one finds under another name.
Result<std::vector<std::string>> ListAtOnce(FileSystem& fs, const std::string& directory) {
  Result<std::vector<std::string>> names = fs.List(directory);
  for (int i = 1; names.ok() && i < kMostListings; ++i) {
    Result<std::vector<std::string>> again = fs.List(directory);
    if (again.ok() && *again == *names) return again;
    names = std::move(again);
  }
  return names;
}

bool WaitsAside(const std::vector<std::string>& names, const std::string& name) {
  const auto [step, nonce] = MarkedParts(name, "superseded");
  return !step.empty() && !std::ranges::binary_search(names, step) &&
         std::ranges::binary_search(names, PartialDirName(*ParseStepDirName(step), nonce));
}

StepPlace FindStep(FileSystem& fs, const std::string& step_dir) {
  if (const Result<FileInfo> info = fs.Stat(step_dir); info.ok()) return {step_dir, info->inode};
  const std::string path(WithoutSlashes(step_dir));
  const std::string_view own = LastName(path);
  if (!ParseStepDirName(own)) return {step_dir};
  const std::string run_dir = ParentDir(path);
  const auto names = ListAtOnce(fs, run_dir);
  if (!names.ok()) return {step_dir};
  for (const std::string& name : *names) {
    if (!name.starts_with(own) || !WaitsAside(*names, name)) continue;
    const Result<FileInfo> info = fs.Stat(JoinPath(run_dir, name));
    if (info.ok()) return {JoinPath(run_dir, name), info->inode};
  }
  // A listing that has the name is newer than the check above.
  const Result<FileInfo> info = fs.Stat(step_dir);
  return {step_dir, info.ok() ? info->inode : 0};
}

Result<Manifest> ReadManifest(FileSystem& fs, const std::string& step_dir, Digest* digest) {
  return ReadStep(fs, step_dir, [&](const std::string& directory) -> Result<Manifest> {
    const std::string path = JoinPath(directory, kManifestName);
    CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, kMaxManifestBytes));
    if (digest != nullptr) *digest = DigestOf(text);
    Result<Manifest> manifest = DecodeManifest(text);
    return manifest.ok() ? std::move(manifest) : manifest.status().WithContext(path);
  });
}

}  // namespace cairn
