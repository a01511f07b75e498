// The new directory's name is durable before the old one loses its name, and the old one durably set aside
// before the new one takes its place: of two renames not yet durable, a power loss may keep only the second.

#include "ckpt/step/replace_by_renames.h"

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/find_step.h"

namespace cairn {

Status SyncAbove(FileSystem& fs, const std::string& a, const std::string& b) {
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(ParentDir(a)));
  return ParentDir(a) == ParentDir(b) ? OkStatus() : fs.SyncDir(ParentDir(b));
}

Status ReplaceByRenames(FileSystem& fs, const std::string& from, const std::string& to,
                        const std::string& aside) {
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(ParentDir(from)));
  CAIRN_RETURN_IF_ERROR(fs.RenameNew(to, aside));
  Status replaced = SyncAbove(fs, to, aside);
  if (replaced.ok()) replaced = fs.RenameNew(from, to);
  if (replaced.ok()) return SyncAbove(fs, to, from);
  if (fs.RenameNew(aside, to).ok()) (void)SyncAbove(fs, to, aside);
  return replaced;
}

Status BringBack(FileSystem& fs, const std::string& partial_dir) {
  const auto [step, nonce] = MarkedParts(LastName(partial_dir), "partial");
  if (step.empty()) return OkStatus();
  const std::string run_dir = ParentDir(partial_dir), to = JoinPath(run_dir, step);
  const std::string aside = JoinPath(run_dir, SupersededDirName(*ParseStepDirName(step), nonce));
  if (!fs.LinkStat(aside).ok() || fs.LinkStat(to).status().kind() != StatusKind::kNotFound) return OkStatus();
  CAIRN_RETURN_IF_ERROR(fs.RenameNew(aside, to));
  return fs.SyncDir(run_dir);
}

}  // namespace cairn
