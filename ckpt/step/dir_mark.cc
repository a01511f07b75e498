// A mark is its binding in a place of fixed length, so that it can be written later in one short write; a
// line of JSON for people; and then names, each ended by a NUL, because names of files may hold any other
// byte: that of the directory, and those of the files. A binding of which a kill or a power loss left a part
// counts as none: then nothing is in the directory yet.
#include "ckpt/step/dir_mark.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/nonce.h"
#include "ckpt/base/this_process.h"
#include "ckpt/io/file_lock.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/replace_by_renames.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxMarkBytes = uint64_t{1} << 30;  // a tree of 10 million files
constexpr std::string_view kMagic = "cairn-mark 2 ";
constexpr size_t kBindingDigits = 40, kBoundDigits = 32;  // inode and birth time; the rest checks them

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

std::string EncodeBinding(const DirectoryFacts& facts) {
  if (facts.inode == 0) return std::string(kBindingDigits, '-');
  const std::string bound = fmt::format("{:016x}{:016x}", facts.inode, facts.born_unix_nanoseconds);
  return (bound + ToHex(DigestOf(bound))).substr(0, kBindingDigits);
}

// None: facts of zero.
DirectoryFacts DecodeBinding(std::string_view text) {
  const auto number = [&](size_t at) {
    uint64_t value = 0;
    for (const char digit : text.substr(at, 16))
      value = value * 16 + (digit <= '9' ? digit - '0' : digit - 'a' + 10);
    return value;
  };
  if (!IsHex(text)) return {};
  const DirectoryFacts facts{.inode = number(0), .born_unix_nanoseconds = static_cast<int64_t>(number(16))};
  return EncodeBinding(facts) == text ? facts : DirectoryFacts{};
}

struct DirMark {
  MarkedContents contents;
  DirectoryFacts bound = {};  // zeros: to no directory yet
  uint32_t owner = 0;
};

// Not every host sees a birth time.
bool Fits(const DirMark& mark, const DirectoryFacts& directory) {
  const bool unknown = mark.bound.born_unix_nanoseconds == 0 || directory.born_unix_nanoseconds == 0;
  return unknown ? mark.bound.inode == directory.inode : mark.bound == directory;
}

std::string Encode(const std::string& directory, const MarkedContents& contents, const DirectoryFacts& made) {
  const nlohmann::ordered_json facts = {{"host", HostName()},
                                        {"pid", ::getpid()},
                                        {"step", contents.step},
                                        {"run", contents.run},
                                        {"files", contents.files.size()}};
  std::string text = fmt::format("{}{} {}\n", kMagic, EncodeBinding(made),
                                 facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  text.append(LastName(directory)).push_back('\0');
  for (const std::string& file : contents.files) text.append(file).push_back('\0');
  return text;
}

Result<DirMark> Decode(std::string_view text, const std::string& directory) {
  const auto bad = [&] { return Corrupt("{} is not Cairn's mark of {}", MarkPath(directory), directory); };
  const size_t begin = kMagic.size() + kBindingDigits;
  const size_t end = text.find('\n', begin);
  if (!text.starts_with(kMagic) || end == text.npos) return bad();
  const auto facts =
      nlohmann::json::parse(text.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
  DirMark mark{.contents = {}, .bound = DecodeBinding(text.substr(kMagic.size(), kBindingDigits))};
  MarkedContents& contents = mark.contents;
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
  return mark;
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
        (void)RemoveMarked(fs_, JoinPath(Path(below), name.substr(0, name.size() - kMarkSuffix.size())),
                           LocksHeld::kRun);
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

Result<DirMark> ReadMark(FileSystem& fs, const std::string& directory) {
  const std::string path = MarkPath(directory);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(path));
  if (info.kind != FileKind::kFile) return Corrupt("{} is not a file", path);
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, kMaxMarkBytes));
  CAIRN_ASSIGN_OR_RETURN(DirMark mark, Decode(text, directory));
  CAIRN_ASSIGN_OR_RETURN(const DirectoryFacts facts, FactsOf(fs, path));
  mark.owner = facts.owner;
  return mark;
}

// The owner of what this process makes beside `directory`: a network file system may give all files to one.
// The probe is an empty mark, which a later clean-up removes.
uint32_t OwnerOfNewFiles(FileSystem& fs, const std::string& directory) {
  const std::string probe = MarkPath(PartialPrefix(directory) + NewNonce());
  uint32_t owner = ::geteuid();
  if (!WriteSmallFile(fs, probe, "").ok()) return owner;
  if (const Result<DirectoryFacts> facts = FactsOf(fs, probe); facts.ok()) owner = facts->owner;
  (void)fs.RemoveFile(probe);
  return owner;
}

bool IsOwn(FileSystem& fs, const std::string& directory, uint32_t owner) {
  return !fs.HasOtherProcesses() || owner == ::geteuid() || owner == OwnerOfNewFiles(fs, directory);
}

// For a directory that does not exist. A process that was killed while it wrote its mark left the begin, and
// a power loss perhaps zeros.
bool IsOwnMark(FileSystem& fs, const std::string& directory, bool readable) {
  const std::string path = MarkPath(directory);
  const Result<FileInfo> info = fs.LinkStat(path);
  const Result<DirectoryFacts> facts = FactsOf(fs, path);
  if (!info.ok() || !facts.ok() || !IsOwn(fs, directory, facts->owner)) return false;
  if (readable || info->kind != FileKind::kFile) return readable;
  const Result<std::string> text = ReadSmallFile(fs, path, kMaxMarkBytes);
  return text.ok() && (kMagic.starts_with(std::string_view(*text).substr(0, kMagic.size())) ||
                       text->find_first_not_of('\0') == text->npos);
}

// "out.partial-01234567" and a step that is being written or deleted. Every other name is final.
bool IsTemporaryName(std::string_view name) {
  if (const auto word = ParseMarkedDirName(name)) return *word == "partial" || *word == "deleting";
  if (name.size() <= kNonceDigits) return false;
  const std::string_view nonce = name.substr(name.size() - kNonceDigits);
  return IsHex(nonce) && name.substr(0, name.size() - kNonceDigits).ends_with(PartialPrefix(""));
}

// What the mark allows to remove. The directory must exist.
Result<MarkedContents> Allowed(FileSystem& fs, const std::string& directory, DirMark mark) {
  const auto refuse = [&](std::string_view why) {
    return InvalidArgument(
        "{} looks like what a killed command left, but {}; it stays. Remove it by hand if nobody needs it",
        directory, why);
  };
  MarkedContents& contents = mark.contents;
  CAIRN_ASSIGN_OR_RETURN(const DirectoryFacts facts, FactsOf(fs, directory));
  if (mark.owner != facts.owner || !IsOwn(fs, directory, mark.owner))
    return refuse("it or its mark belongs to another user");
  if (!IsTemporaryName(LastName(directory)) && (!contents.run || contents.step || !contents.files.empty()))
    return refuse("its name is final and its mark is not that of a run directory");
  if (mark.bound.inode == 0) return MarkedContents{};  // nothing was put into it
  if (!Fits(mark, facts)) return refuse("its mark was made for another directory");
  return std::move(contents);
}

// True if no process holds a lock on the file, which may be missing. `lock` keeps it so.
Result<bool> IsFree(FileSystem& fs, const std::string& locked, std::optional<FileLock>& lock) {
  Result<FileLock> opened = fs.OpenLock(locked, FileLock::Missing::kError);
  if (opened.status().kind() == StatusKind::kNotFound) return true;
  if (!opened.ok()) return InvalidArgument("{}; what it belongs to stays", opened.status().message());
  const Result<bool> free = opened->TryLock(FileLock::How::kExclusive);
  if (!free.ok()) return InvalidArgument("{}; what it belongs to stays", free.status().message());
  if (*free) lock = std::move(*opened);
  return *free;
}

// The locks under which a directory is written. A save of a training uses the lock of its run.
class WriterLocks {
 public:
  Result<bool> Take(FileSystem& fs, const std::string& directory, LocksHeld held) {
    if (held == LocksHeld::kAll) return true;
    std::vector<std::string> files = {MarkPath(directory), JoinPath(directory, kLockName)};
    if (held == LocksHeld::kNone && ParseMarkedDirName(LastName(directory)))
      files.push_back(JoinPath(ParentDir(directory), kLockName));
    for (const std::string& file : files) {
      CAIRN_ASSIGN_OR_RETURN(const bool free, IsFree(fs, file, locks_.emplace_back()));
      if (!free) return false;
    }
    return true;
  }

 private:
  std::deque<std::optional<FileLock>> locks_;
};

}  // namespace

std::string MarkPath(std::string_view directory) {
  return fmt::format("{}{}", WithoutSlashes(directory), kMarkSuffix);
}

std::string PartialPrefix(std::string_view path) { return fmt::format("{}.partial-", WithoutSlashes(path)); }

Status WriteMark(FileSystem& fs, const std::string& directory, const MarkedContents& contents,
                 const DirectoryFacts& made) {
  const std::string path = MarkPath(directory);
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, path, Encode(directory, contents, made)));
  const Status synced = fs.SyncDir(ParentDir(path));
  if (!synced.ok()) (void)fs.RemoveFile(path);
  return synced;
}

Status BindMark(FileSystem& fs, const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const DirMark mark, ReadMark(fs, directory));
  CAIRN_ASSIGN_OR_RETURN(const DirectoryFacts made, FactsOf(fs, directory));
  if (mark.bound.inode != 0) {
    if (Fits(mark, made)) return OkStatus();
    return Corrupt("{} was made for another directory than {}", MarkPath(directory), directory);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         fs.OpenForWrite(MarkPath(directory), Direct::kOff));
  const std::string binding = EncodeBinding(made);
  CAIRN_RETURN_IF_ERROR(file->WriteAt(kMagic.size(), std::as_bytes(std::span(binding))));
  CAIRN_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// The first process writes the mark, and any binds it; one that finds it unfinished leaves that to its
// writer. If the first one cannot bind it, the directory must go before anybody says in it that the save
// failed. The file that takes the mark's place has a name that a step's mark knows.
Status MakeMarkedDir(FileSystem& fs, const std::string& directory, const MarkedContents& contents) {
  const Status marked = WriteMark(fs, directory, contents);
  const bool first = marked.ok();
  if (marked.kind() != StatusKind::kAlreadyExists) CAIRN_RETURN_IF_ERROR(marked);
  CAIRN_RETURN_IF_ERROR(fs.MakeDir(directory));
  const Status bound = BindMark(fs, directory);
  if (first && !bound.ok() && fs.RemoveDir(directory).ok()) RemoveMark(fs, directory);
  if (first) return bound;
  if (contents.files.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const DirectoryFacts made, FactsOf(fs, directory));
  return WriteAndRename(fs, JoinPath(directory, "team-mark"), MarkPath(directory),
                        Encode(directory, contents, made));
}

void RemoveMark(FileSystem& fs, const std::string& directory) {
  if (ReadMark(fs, directory).ok()) (void)RemoveIfThere(fs, MarkPath(directory));
}

Status RemoveMarked(FileSystem& fs, const std::string& directory, LocksHeld held) {
  WriterLocks locks;
  CAIRN_ASSIGN_OR_RETURN(const bool free, locks.Take(fs, directory, held));
  if (!free) return OkStatus();
  CAIRN_RETURN_IF_ERROR(BringBack(fs, directory));
  const Result<DirMark> mark = ReadMark(fs, directory);
  const bool there = fs.LinkStat(directory).ok();
  if (!there && mark.status().kind() == StatusKind::kNotFound) return OkStatus();
  if (there && mark.ok()) {
    CAIRN_ASSIGN_OR_RETURN(const MarkedContents contents, Allowed(fs, directory, *mark));
    return RemoveMarked(fs, directory, contents);
  }
  if (!there && IsOwnMark(fs, directory, mark.ok())) return RemoveMarked(fs, directory, MarkedContents{});
  return InvalidArgument(
      "{} looks like what a killed command left, but has no mark of Cairn's; it stays. Remove it by hand if "
      "nobody needs it",
      there ? directory : MarkPath(directory));
}

Status RemoveMarked(FileSystem& fs, const std::string& directory, const MarkedContents& contents) {
  CAIRN_RETURN_IF_ERROR(BringBack(fs, directory));
  const Status removed = Removal(fs, directory, contents).Run();
  if (removed.kind() != StatusKind::kNotFound) CAIRN_RETURN_IF_ERROR(removed);
  // A process that was killed while it renewed `latest` left this.
  const std::string name(LastName(directory)), parent(ParentDir(directory));
  const std::string latest = JoinPath(parent, LatestTempName(name.substr(name.rfind('-') + 1)));
  const bool renewed = ParseMarkedDirName(name) == "partial" && fs.LinkStat(latest).ok();
  if (renewed) CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, latest));
  // A power loss must bring neither back without the mark.
  if (removed.ok() || renewed) CAIRN_RETURN_IF_ERROR(fs.SyncDir(parent));
  return RemoveIfThere(fs, MarkPath(directory));
}

}  // namespace cairn
