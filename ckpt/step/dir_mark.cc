// A mark is a line of JSON for people, and then names, each ended by a NUL, because names of files may hold
// any other byte: that of the directory, and those of the files.
#include "ckpt/step/dir_mark.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/this_process.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/replace_by_renames.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxMarkBytes = uint64_t{1} << 30;  // a tree of 10 million files
constexpr std::string_view kMagic = "cairn-mark 1 ";

// A path that cannot lead out of the directory.
bool StaysInside(std::string_view path) {
  if (path.ends_with('/')) path.remove_suffix(1);
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (!IsPlainFileName(path.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

std::string Encode(const std::string& directory, const MarkedContents& contents) {
  const nlohmann::ordered_json facts = {{"host", HostName()},
                                        {"pid", ::getpid()},
                                        {"step", contents.step},
                                        {"run", contents.run},
                                        {"files", contents.files.size()}};
  std::string text =
      std::string(kMagic) + facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text += '\n';
  text.append(LastName(directory)).push_back('\0');
  for (const std::string& file : contents.files) text.append(file).push_back('\0');
  return text;
}

Result<MarkedContents> Decode(std::string_view text, const std::string& directory) {
  const auto bad = [&] { return Corrupt("{} is not Cairn's mark of {}", MarkPath(directory), directory); };
  const size_t end = text.find('\n');
  if (!text.starts_with(kMagic) || end == text.npos) return bad();
  const auto facts = nlohmann::json::parse(text.substr(kMagic.size(), end - kMagic.size()), nullptr,
                                           /*allow_exceptions=*/false);
  MarkedContents contents;
  try {
    contents.step = facts.at("step").get<bool>();
    contents.run = facts.at("run").get<bool>();
    std::vector<std::string> names;
    for (size_t at = end + 1; at < text.size();) {
      const size_t stop = text.find('\0', at);
      if (stop == text.npos) return bad();
      names.emplace_back(text.substr(at, stop - at));
      at = stop + 1;
    }
    if (names.size() != facts.at("files").get<size_t>() + 1 || names[0] != LastName(directory)) return bad();
    contents.files.assign(names.begin() + 1, names.end());
  } catch (const nlohmann::json::exception&) {
    return bad();
  }
  if (!std::ranges::all_of(contents.files, StaysInside)) return bad();
  return contents;
}

class Removal {
 public:
  Removal(FileSystem& fs, const std::string& directory, const MarkedContents& contents)
      : fs_(fs), directory_(directory), contents_(contents) {}

  Status Run() {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.LinkStat(directory_));
    if (!info.is_directory())
      return InvalidArgument("{} is a {}, which Cairn did not make; it was not removed", directory_,
                             info.kind == FileKind::kLink ? "link" : "file");
    FindDirectories();
    for (const std::string& below : directories_) CAIRN_RETURN_IF_ERROR(RemoveByName(below));
    for (const std::string& file : contents_.files)
      if (!file.ends_with('/') && directories_.contains(Above(file))) CAIRN_RETURN_IF_ERROR(RemoveFile(file));
    if (contents_.run) CAIRN_RETURN_IF_ERROR(RemoveLastLock());
    for (auto below = directories_.rbegin(); below != directories_.rend(); ++below)
      if (!below->empty()) (void)fs_.RemoveDir(Path(*below));
    const Status removed = fs_.RemoveDir(directory_);
    if (removed.kind() != StatusKind::kAlreadyExists) return removed;
    return contents_.run ? OkStatus() : NameStranger("");
  }

 private:
  std::string Path(const std::string& below) const {
    return below.empty() ? directory_ : JoinPath(directory_, below);
  }
  static std::string Above(const std::string& path) {
    const size_t slash = path.find_last_of('/');
    return slash == path.npos ? "" : path.substr(0, slash);
  }

  // The directories of the mark that exist. No link is followed.
  void FindDirectories() {
    std::set<std::string> named;
    for (const std::string& file : contents_.files) AddDirectories(file, named);
    directories_.insert("");
    for (const std::string& below : named) {  // sorted: those above come first
      const Result<FileInfo> info = fs_.LinkStat(Path(below));
      if (info.ok() && info->is_directory() && directories_.contains(Above(below)))
        directories_.insert(below);
    }
  }

  // Removes what is known by its name: marked directories, and files of a step. The manifest first: without
  // it no reader takes the rest for a step.
  Status RemoveByName(const std::string& below) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<std::string> names, fs_.List(Path(below)));
    for (const std::string& name : names)
      if (name.ends_with(kMarkSuffix))
        (void)RemoveMarked(fs_, JoinPath(Path(below), name.substr(0, name.size() - kMarkSuffix.size())));
    std::ranges::stable_partition(names, [](const std::string& name) { return name == kManifestName; });
    for (const std::string& name : names)
      if (contents_.step && IsStepFileName(name))
        CAIRN_RETURN_IF_ERROR(RemoveFile(below.empty() ? name : JoinPath(below, name)));
    return OkStatus();
  }

  Status RemoveFile(const std::string& below) {
    const Result<FileInfo> info = fs_.LinkStat(Path(below));
    if (info.status().kind() == StatusKind::kNotFound) return OkStatus();
    CAIRN_RETURN_IF_ERROR(info.status());
    if (info->kind != FileKind::kFile && info->kind != FileKind::kLink) return OkStatus();
    return RemoveIfThere(fs_, Path(below));
  }

  // The lock of a run directory is removed only if it is alone in it: another process may use it by now.
  Status RemoveLastLock() {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.List(directory_));
    if (names != std::vector<std::string>{std::string(kLockName)}) return OkStatus();
    return RemoveIfThere(fs_, JoinPath(directory_, kLockName));
  }

  Status NameStranger(const std::string& below) {
    const Result<std::vector<std::string>> names = fs_.List(Path(below));
    CAIRN_RETURN_IF_ERROR(names.status());
    if (names->empty()) return fs_.RemoveDir(Path(below));  // another thread removed a file since
    const std::string path = below.empty() ? names->front() : JoinPath(below, names->front());
    if (directories_.contains(path)) return NameStranger(path);
    return InvalidArgument("{} was not written by Cairn and was not removed; move it away, then remove {}",
                           Path(path), directory_);
  }

  FileSystem& fs_;
  const std::string& directory_;
  const MarkedContents& contents_;
  std::set<std::string> directories_;  // below it, "" is itself
};

// A process that was killed right after it had created its mark left it empty, and made no directory.
bool IsUnused(FileSystem& fs, const std::string& directory) {
  const Result<FileInfo> mark = fs.LinkStat(MarkPath(directory));
  return mark.ok() && mark->kind == FileKind::kFile && mark->bytes == 0 &&
         fs.LinkStat(directory).status().kind() == StatusKind::kNotFound;
}

Result<MarkedContents> ReadMark(FileSystem& fs, const std::string& directory) {
  const std::string path = MarkPath(directory);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(path));
  if (info.kind != FileKind::kFile) return Corrupt("{} is not a file", path);
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, kMaxMarkBytes));
  return Decode(text, directory);
}

}  // namespace

std::string MarkPath(std::string_view directory) {
  return fmt::format("{}{}", WithoutSlashes(directory), kMarkSuffix);
}

Status WriteMark(FileSystem& fs, const std::string& directory, const MarkedContents& contents) {
  const std::string path = MarkPath(directory);
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, path, Encode(directory, contents)));
  const Status synced = fs.SyncDir(ParentDir(path));
  if (!synced.ok()) (void)fs.RemoveFile(path);
  return synced;
}

// The file that becomes the mark has a name that a step's mark knows.
Status ReplaceMark(FileSystem& fs, const std::string& directory, const MarkedContents& contents) {
  return WriteAndRename(fs, JoinPath(directory, "team-mark"), MarkPath(directory),
                        Encode(directory, contents));
}

void RemoveMark(FileSystem& fs, const std::string& directory) {
  if (ReadMark(fs, directory).ok()) (void)RemoveIfThere(fs, MarkPath(directory));
}

Status RemoveMarked(FileSystem& fs, const std::string& directory) {
  CAIRN_RETURN_IF_ERROR(BringBack(fs, directory));
  const Result<MarkedContents> contents = ReadMark(fs, directory);
  if (contents.ok()) return RemoveMarked(fs, directory, *contents);
  const bool there = fs.LinkStat(directory).ok();
  if (!there && contents.status().kind() == StatusKind::kNotFound) return OkStatus();
  if (IsUnused(fs, directory)) return RemoveIfThere(fs, MarkPath(directory));
  return InvalidArgument(
      "{} looks like what a killed command left, but has no mark of Cairn's; it stays. Remove it by hand if "
      "nobody needs it",
      there ? directory : MarkPath(directory));
}

Status RemoveMarked(FileSystem& fs, const std::string& directory, const MarkedContents& contents) {
  const Status removed = Removal(fs, directory, contents).Run();
  if (removed.kind() != StatusKind::kNotFound) CAIRN_RETURN_IF_ERROR(removed);
  // A power loss must not bring the directory back without its mark.
  if (removed.ok()) CAIRN_RETURN_IF_ERROR(fs.SyncDir(ParentDir(directory)));
  // A process that was killed while it renewed `latest` left this. The mark goes after it.
  const std::string name(LastName(directory));
  if (ParseMarkedDirName(name) == "partial")
    CAIRN_RETURN_IF_ERROR(
        RemoveIfThere(fs, JoinPath(ParentDir(directory), LatestTempName(name.substr(name.rfind('-') + 1)))));
  return RemoveIfThere(fs, MarkPath(directory));
}

}  // namespace cairn
