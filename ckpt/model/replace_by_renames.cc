// The new directory's name is durable before the old one loses its name, and the old one durably set aside
// before the new one takes its place: of two renames not yet durable, a power loss may keep only the second.

#include "ckpt/model/replace_by_renames.h"

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

constexpr int kMostListings = 10;  // of a directory in which other processes keep renaming

// "step-00000010" and "NONCE" of "step-00000010.MARK-NONCE"; empty for other names.
std::pair<std::string, std::string> Parts(std::string_view name, std::string_view mark) {
  if (ParseMarkedDirName(name) != mark) return {};
  return {std::string(name.substr(0, name.find('.'))), std::string(name.substr(name.rfind('-') + 1))};
}

}  // namespace

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
  const auto [step, nonce] = Parts(LastName(partial_dir), "partial");
  if (step.empty()) return OkStatus();
  const std::string run_dir = ParentDir(partial_dir), to = JoinPath(run_dir, step);
  const std::string aside = JoinPath(run_dir, SupersededDirName(*ParseStepDirName(step), nonce));
  if (!fs.LinkStat(aside).ok() || fs.LinkStat(to).status().kind() != StatusKind::kNotFound) return OkStatus();
  CAIRN_RETURN_IF_ERROR(fs.RenameNew(aside, to));
  return fs.SyncDir(run_dir);
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
  const auto [step, nonce] = Parts(name, "superseded");
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

}  // namespace cairn
