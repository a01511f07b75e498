#include "ckpt/run/step_hold.h"

#include <ctime>
#include <filesystem>

#include "ckpt/base/digest.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/partial_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxHoldBytes = 4096 + 1;  // a path and a newline
constexpr int64_t kAnnouncedSeconds = 3600;

}  // namespace

Status HoldStep(FileSystem& fs, const std::string& step_dir, const std::string& holder) {
  const std::filesystem::path path = std::filesystem::path(JoinPath(step_dir, "")).parent_path();
  const std::optional<int64_t> step = ParseStepDirName(path.filename().string());
  if (!step) return OkStatus();
  const std::string holds = JoinPath(path.parent_path().string(), kHeldName);
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, holds));
  const std::string name = HoldName(*step, ToHex(DigestOf(holder)).substr(0, 8));
  // Replaces an older one without a gap, and renews its age: HolderOf() may look at any moment.
  CAIRN_RETURN_IF_ERROR(WriteAndRename(fs, JoinPath(holds, fmt::format("next-{}-{}", NewNonce(), name)),
                                       JoinPath(holds, name), holder + "\n"));
  return fs.SyncDir(holds);
}

Result<std::string> HolderOf(FileSystem& fs, const std::string& run_dir, int64_t step) {
  const std::string holds = JoinPath(run_dir, kHeldName);
  const Result<std::vector<std::string>> names = fs.List(holds);
  if (!names.ok() && names.status().kind() == StatusKind::kNotFound) return std::string();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!name.starts_with(HoldName(step, ""))) continue;
    const std::string hold = JoinPath(holds, name);
    CAIRN_ASSIGN_OR_RETURN(std::string holder, ReadSmallFile(fs, hold, kMaxHoldBytes));
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(hold));
    if (holder.ends_with('\n')) holder.pop_back();
    const bool announced = std::time(nullptr) - info.modified_unix_seconds < kAnnouncedSeconds;
    if (announced || fs.Stat(JoinPath(holder, kManifestName)).ok()) return holder;
  }
  return std::string();
}

}  // namespace cairn
