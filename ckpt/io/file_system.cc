#include "ckpt/io/file_system.h"

namespace cairn {

Status FileSystem::RenameNew(const std::string& from, const std::string& to) {
  if (LinkStat(to).ok()) return AlreadyExists("{} already exists and is never overwritten", to);
  return Rename(from, to);
}

Status FileSystem::MakeNewDir(const std::string& path) {
  if (LinkStat(path).ok()) return AlreadyExists("{} already exists", path);
  return MakeDir(path);
}

Result<std::string> FileSystem::ReadLink(const std::string& path) {
  return NotSupported("{}: this file system has no links", path);
}
Status FileSystem::MakeLink(const std::string&, const std::string& path) { return ReadLink(path).status(); }
Status FileSystem::AddName(const std::string&, const std::string& path) { return ReadLink(path).status(); }

Status FileSystem::SetMode(const std::string& path, uint32_t) {
  return NotSupported("{}: files of this file system have no mode, owner or time that can be set", path);
}
Status FileSystem::SetOwner(const std::string& path, uint32_t, uint32_t) { return SetMode(path, 0); }
Status FileSystem::SetModified(const std::string& path, int64_t, uint32_t) { return SetMode(path, 0); }

Result<FileLock> FileSystem::OpenLock(const std::string& path, FileLock::Missing) {
  return FileLock(UniqueFd(), path);
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  return fmt::format("{}{}{}", directory, directory.ends_with('/') ? "" : "/", name);
}

std::string ParentDir(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  const size_t slash = end == std::string::npos ? end : path.find_last_of('/', end);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status MakeDirs(FileSystem& fs, const std::string& path) {
  if (path.empty() || fs.Stat(path).ok()) return OkStatus();
  const std::string parent = ParentDir(path);
  if (parent != "." && parent != "/") CAIRN_RETURN_IF_ERROR(MakeDirs(fs, parent));
  CAIRN_RETURN_IF_ERROR(fs.MakeDir(path));
  return fs.SyncDir(parent);
}

Status RemoveTree(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo root, fs.LinkStat(path));
  if (!root.is_directory())
    return NotSupported("{} is not a directory but a {}; Cairn does not touch it, remove it by hand", path,
                        root.kind == FileKind::kLink ? "link" : "file");
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  for (const std::string& name : names) {
    const std::string entry = JoinPath(path, name);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(entry));
    CAIRN_RETURN_IF_ERROR(info.is_directory() ? RemoveTree(fs, entry) : fs.RemoveFile(entry));
  }
  return fs.RemoveDir(path);
}

Result<std::string> ReadSmallFile(FileSystem& fs, const std::string& path, uint64_t max_bytes) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (info.bytes > max_bytes)
    return NotSupported("{} has {} bytes, but such a file has at most {}; is it the right file?", path,
                        info.bytes, max_bytes);
  CAIRN_ASSIGN_OR_RETURN(auto file, fs.OpenForRead(path));
  std::string bytes(info.bytes, '\0');
  CAIRN_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Status RemoveIfThere(FileSystem& fs, const std::string& path) {
  const Status status = fs.RemoveFile(path);
  return status.kind() == StatusKind::kNotFound ? OkStatus() : status;
}

Status WriteSmallFile(FileSystem& fs, const std::string& path, std::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(auto file, fs.Create(path));
  Status status = file->WriteAt(0, std::as_bytes(std::span(bytes)));
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Close();
  if (!status.ok()) (void)fs.RemoveFile(path);
  return status;
}

}  // namespace cairn
