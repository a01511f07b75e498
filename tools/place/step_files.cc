#include "tools/place/step_files.h"

#include <algorithm>
#include <tuple>

#include "ckpt/base/canonical_path.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

constexpr int kMaxStepDepth = 40;  // no checkpoint is nested this deeply; only cycles of links are
constexpr size_t kMaxStepFiles = 1 << 22;

Status AddBelow(FileSystem& fs, const std::string& root, const std::string& folder, int depth,
                std::vector<StepFile>& files) {
  if (depth > kMaxStepDepth)
    return NotSupported("{}: it contains itself, through a link", JoinPath(root, folder));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         fs.List(folder.empty() ? root : JoinPath(root, folder)));
  for (const std::string& name : names) {
    const std::string below = folder + name;
    if (!IsContent(below)) continue;
    const std::string path = JoinPath(root, below);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
    if (info.is_directory()) {
      CAIRN_RETURN_IF_ERROR(AddBelow(fs, root, below + "/", depth + 1, files));
      continue;
    }
    if (info.kind != FileKind::kFile || files.size() == kMaxStepFiles)
      return NotSupported("{}: it is not a file or directory; move it away first", path);
    files.push_back({info, below});
  }
  return OkStatus();
}

}  // namespace

bool StepFile::operator==(const StepFile& other) const {
  const auto facts = [](const StepFile& file) {
    return std::tie(file.name, file.bytes, file.modified_unix_seconds, file.modified_unix_nanoseconds,
                    file.changed_unix_nanoseconds, file.inode);
  };
  return facts(*this) == facts(other);
}

bool IsContent(std::string_view name) {
  if (name.starts_with(kSealName) && (name == kSealName || name.substr(kSealName.size()) == kPartialSuffix))
    return false;
  const std::string_view last = LastName(name);
  return last != kLockName && last != kDeletionLockName;
}

Result<std::vector<StepFile>> ListStepFiles(FileSystem& fs, const std::string& directory) {
  if (const auto info = fs.Stat(directory); info.ok() && info->kind == FileKind::kFile)
    return std::vector{StepFile{*info, std::string(LastName(directory))}};
  std::vector<StepFile> files;
  CAIRN_RETURN_IF_ERROR(AddBelow(fs, directory, "", 0, files));
  std::ranges::sort(files, {}, &StepFile::name);
  return files;
}

FileTimes TimesOf(const std::vector<StepFile>& files) {
  FileTimes times;
  for (const StepFile& file : files) times.Add(file);
  return times;
}

FileTimes TimesOf(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names) {
  FileTimes times;
  for (const std::string& name : names)
    if (const auto info = fs.Stat(JoinPath(directory, name)); info.ok()) times.Add(*info);
  return times;
}

std::string FolderOf(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash == name.npos ? "" : name.substr(0, slash + 1);
}

}  // namespace cairn
