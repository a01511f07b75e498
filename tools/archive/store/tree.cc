// Listing uses lstat; the identity is a SHA-256 over one line for each entry; comparison goes entry by entry,
// so that a message can name the first difference.
#include "tools/archive/store/tree.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>

#include "ckpt/base/sha256.h"
#include "ckpt/base/sidecar_text.h"
#include "ckpt/base/unix_nanoseconds.h"
#include "ckpt/model/plain_path.h"
#include "tools/archive/store/source.h"
#include "tools/archive/store/verify.h"
#include "tools/archive/tar/tar_index.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

constexpr size_t kMaxTreeEntries = 1 << 20;
constexpr size_t kMaxDepth = 2048;  // a deeper path would be too long
constexpr size_t kTreeDigestDigits = 32;

using Identity = std::pair<uint64_t, uint64_t>;  // device, inode

// True if a link in directory `below` of the tree at `root` (canonical) leads out of it, by its text or by
// the file that it leads to.
bool LeadsOut(const std::string& root, const std::string& below, const std::string& target) {
  if (target.starts_with('/')) return true;
  int depth = 0;
  for (const stdfs::path& part : stdfs::path(below) / target) {
    depth += part == ".." ? -1 : part == "." || part.empty() ? 0 : 1;
    if (depth < 0) return true;
  }
  std::error_code error;
  const stdfs::path end = stdfs::weakly_canonical(stdfs::path(root) / below / target, error);
  if (error) return false;  // for example a link to itself: it leads nowhere
  return end != root && !(end.string() + "/").starts_with(root == "/" ? root : root + "/");
}

EntryFacts FactsOf(const struct stat& st) {
  EntryFacts facts{.mode = st.st_mode & 07777u,
                   .user = st.st_uid,
                   .group = st.st_gid,
                   .modified_unix_seconds = st.st_mtim.tv_sec,
                   .modified_nanoseconds = static_cast<uint32_t>(st.st_mtim.tv_nsec)};
  // libarchive writes a fraction of a second before 1970 as one after it.
  if (facts.modified_unix_seconds < 0) facts.modified_nanoseconds = 0;
  return facts;
}

// Lists one tree.
class Lister {
 public:
  Lister(FileSystem& fs, const std::string& root, Links links)
      : fs_(fs), root_(root), canonical_(CanonicalPath(root)), links_(links) {}

  Result<std::vector<TreeFile>> List() && {
    struct stat st;
    if (::stat(root_.c_str(), &st) != 0) return NotFound("{}: {}", root_, std::strerror(errno));
    above_.push_back({st.st_dev, st.st_ino});
    CAIRN_RETURN_IF_ERROR(Below("", /*followed=*/false));
    if (files_.empty()) return NotFound("{}: the directory contains no file", root_);
    std::ranges::sort(files_, {}, &TreeFile::name);
    return std::move(files_);
  }

 private:
  // `followed`: a link led here from outside, so everything counts as outside.
  Status Below(const std::string& below, bool followed) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           fs_.List(below.empty() ? root_ : JoinPath(root_, below)));
    for (const std::string& name : names)
      CAIRN_RETURN_IF_ERROR(Add(below, below.empty() ? name : JoinPath(below, name), followed));
    return OkStatus();
  }

  Status Add(const std::string& below, const std::string& name, bool followed) {
    const std::string path = JoinPath(root_, name);
    struct stat st;
    if (::lstat(path.c_str(), &st) != 0)
      return NotFound("{}: {}; was it changed meanwhile?", path, std::strerror(errno));
    TreeFile file{.name = name};
    if (S_ISLNK(st.st_mode)) {
      std::error_code error;
      file.target = stdfs::read_symlink(path, error).string();
      if (error) return IoError("read link {}: {}", path, error.message());
      file.leaves = followed || LeadsOut(canonical_, below, file.target);
      CAIRN_RETURN_IF_ERROR(Judge(path, file, st));
      followed = followed || file.leaves;
    }
    file.kind = S_ISREG(st.st_mode)   ? EntryKind::kFile
                : S_ISDIR(st.st_mode) ? EntryKind::kDirectory
                                      : EntryKind::kLink;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode))
      return NotSupported("{}: it is not a file, directory or link; move it away first", path);
    file.facts = FactsOf(st);
    if (file.kind == EntryKind::kLink) file.facts.mode = 0777;  // a link has none of its own
    file.device = st.st_dev;
    file.inode = st.st_ino;
    file.changed_unix_nanoseconds = UnixNanoseconds(st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
    if (file.kind == EntryKind::kFile)
      file.info = {.bytes = static_cast<uint64_t>(st.st_size),
                   .modified_unix_seconds = st.st_mtim.tv_sec,
                   .accessed_unix_seconds = st.st_atim.tv_sec};
    if (files_.size() == kMaxTreeEntries || !IsPlainPath(name))
      return NotSupported("{}: it has more files, or a longer path, than an archive takes", path);
    files_.push_back(std::move(file));
    return S_ISDIR(st.st_mode) ? Enter(name, {st.st_dev, st.st_ino}, followed) : OkStatus();
  }

  // Decides about a link; if it is followed, `st` becomes that of its target.
  Status Judge(const std::string& path, TreeFile& file, struct stat& st) {
    if (!file.leaves || links_ == Links::kKeep) return OkStatus();
    if (links_ == Links::kRefuse)
      return NotSupported(
          "{}: this link leads out of the tree, to {}; --links keep stores such links as links, without "
          "their targets, --links follow stores their targets instead",
          path, file.target);
    if (::stat(path.c_str(), &st) != 0)
      return NotFound("{}: the link leads to {}, which cannot be read: {}", path, file.target,
                      std::strerror(errno));
    file.target.clear();
    return OkStatus();
  }

  Status Enter(const std::string& name, const Identity& directory, bool followed) {
    if (std::ranges::find(above_, directory) != above_.end() || above_.size() > kMaxDepth)
      return NotSupported("{}: it contains itself, through a link", JoinPath(root_, name));
    above_.push_back(directory);
    CAIRN_RETURN_IF_ERROR(Below(name, followed));
    above_.pop_back();
    return OkStatus();
  }

  FileSystem& fs_;
  const std::string& root_;
  const std::string canonical_;
  const Links links_;
  std::vector<Identity> above_;  // directories from the root to the current one
  std::vector<TreeFile> files_;
};

// The SHA-256 of a file, which is read only once while it stays the same. A file that changed so recently
// that another write might not change its times is read every time.
Result<std::string> KnownHash(FileSystem& fs, const std::string& path, const TreeFile& file) {
  static std::mutex mutex;
  static std::map<std::string, std::pair<TreeFile, std::string>> hashes;
  {
    const std::lock_guard lock(mutex);
    const auto known = hashes.find(path);
    if (known != hashes.end() && known->second.first == file) return known->second.second;
  }
  const int64_t start = std::time(nullptr);
  CAIRN_ASSIGN_OR_RETURN(std::string sha, HashThrough(fs, path, file.info.bytes));
  constexpr int64_t kSettled = 2'000'000'000;  // nanoseconds; clocks of file systems are coarse
  const std::lock_guard lock(mutex);
  if (start * 1'000'000'000 - file.changed_unix_nanoseconds > kSettled) hashes[path] = {file, sha};
  return sha;
}

// The content of an entry: "file", its permission bits, size and SHA-256.
std::string ContentOf(const ArchivedFile& file) {
  return fmt::format("file {:04o} {} {}", file.facts.mode, file.bytes, file.sha256);
}
std::string ContentOf(const ArchivedEntry& entry) {
  return entry.kind == EntryKind::kLink ? fmt::format("link {}", EscapeName(entry.target))
                                        : fmt::format("directory {:04o}", entry.facts.mode);
}

// One for every entry; "" is the tree's own directory.
std::map<std::string, std::string> ContentsOf(const ArchiveRecord& record) {
  std::map<std::string, std::string> contents;
  for (const ArchivedFile& file : record.files) contents[file.name] = ContentOf(file);
  if (record.tree)
    for (const ArchivedEntry& entry : record.tree->entries) contents[entry.name] = ContentOf(entry);
  return contents;
}

Status CheckKnownContent(const ArchiveRecord& record) {
  if (record.form != Form::kFiles) return InvalidArgument("{} is a step, not a tree", TarName(record));
  if (!record.tree)
    return Corrupt(
        "{} was stored by an older program, which kept no modes, links and empty directories; "
        "archive run stores the tree again",
        TarName(record));
  return OkStatus();
}

Result<ArchivedEntry> RootOf(const std::string& directory) {
  struct stat st;
  if (::stat(directory.c_str(), &st) != 0) return NotFound("{}: {}", directory, std::strerror(errno));
  return ArchivedEntry{.name = "", .kind = EntryKind::kDirectory, .target = "", .facts = FactsOf(st)};
}

// For a comparison by names, kinds, sizes and modes, which needs no reading.
ArchiveRecord WithoutSums(ArchiveRecord record) {
  for (ArchivedFile& file : record.files) file.sha256.clear();
  return record;
}

// Reads the files that are listed. `fresh`: even those whose SHA-256 this process knows.
Result<ArchiveRecord> ReadListed(FileSystem& fs, const std::string& directory, Links links,
                                 const std::vector<TreeFile>& files, bool fresh) {
  ArchiveRecord record = DescribeTree(directory, files, links);
  auto described = record.files.begin();
  for (const TreeFile& file : files) {
    if (file.kind != EntryKind::kFile) continue;
    const std::string path = JoinPath(directory, file.name);
    CAIRN_ASSIGN_OR_RETURN(described->sha256,
                           fresh ? HashThrough(fs, path, file.info.bytes) : KnownHash(fs, path, file));
    ++described;
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> after, ListTree(fs, directory, links));
  if (after != files) return Corrupt("{}: its files changed while they were read; run this again", directory);
  record.manifest_digest = record.run = TreeDigest(record);
  return record;
}

}  // namespace

bool TreeFile::operator==(const TreeFile& other) const {
  return name == other.name && kind == other.kind && info.bytes == other.info.bytes &&
         target == other.target && facts == other.facts && device == other.device && inode == other.inode &&
         changed_unix_nanoseconds == other.changed_unix_nanoseconds;
}

Result<std::vector<TreeFile>> ListTree(FileSystem& fs, const std::string& directory, Links links) {
  return Lister(fs, directory, links).List();
}

ArchiveRecord DescribeTree(const std::string& directory, const std::vector<TreeFile>& files, Links links) {
  ArchiveRecord record = NameTree(directory);
  record.tree = ArchivedTree{.followed_links = links == Links::kFollow};
  if (const auto root = RootOf(directory); root.ok()) record.tree->entries.push_back(*root);
  for (const TreeFile& file : files) {
    if (file.kind == EntryKind::kFile)
      record.files.push_back({.name = file.name, .bytes = file.info.bytes, .facts = file.facts});
    else
      record.tree->entries.push_back({file.name, file.kind, file.target, file.facts});
  }
  record.manifest_digest = record.run = TreeDigest(record);
  return record;
}

Result<ArchiveRecord> DescribeTree(FileSystem& fs, const std::string& directory, Links links) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> files, ListTree(fs, directory, links));
  return ReadListed(fs, directory, links, files, /*fresh=*/false);
}

std::string TreeDigest(const ArchiveRecord& record) {
  std::string text = fmt::format("cairn tree 2\n{}\n", EscapeName(record.source));
  for (const auto& [name, content] : ContentsOf(record))
    text += fmt::format("{}\t{}\n", EscapeName(name), content);
  Sha256 sha;
  sha.Update(std::as_bytes(std::span(text)));
  return sha.FinishHex().substr(0, kTreeDigestDigits);
}

Status CompareTrees(const ArchiveRecord& tree, const ArchiveRecord& stored) {
  CAIRN_RETURN_IF_ERROR(CheckKnownContent(stored));
  const auto there = ContentsOf(tree), archived = ContentsOf(stored);
  for (const auto& [name, content] : there) {
    const std::string path = name.empty() ? tree.source : JoinPath(tree.source, name);
    const auto other = archived.find(name);
    if (other == archived.end()) return Corrupt("{} is not in the archived copy", path);
    if (other->second != content)
      return Corrupt("{} differs from the archived copy: it is '{}', but '{}' was archived", path, content,
                     other->second);
  }
  for (const auto& [name, content] : archived)
    if (!there.contains(name)) return Corrupt("{} no longer exists", JoinPath(tree.source, name));
  return OkStatus();
}

Status CheckTreeIs(FileSystem& fs, const std::string& directory, const ArchiveRecord& record) {
  CAIRN_RETURN_IF_ERROR(CheckKnownContent(record));
  const Links links = record.tree->followed_links ? Links::kFollow : Links::kKeep;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> files, ListTree(fs, directory, links));
  // First without reading the files.
  CAIRN_RETURN_IF_ERROR(CompareTrees(DescribeTree(directory, files, links), WithoutSums(record)));
  CAIRN_ASSIGN_OR_RETURN(const ArchiveRecord now, ReadListed(fs, directory, links, files, /*fresh=*/true));
  return CompareTrees(now, record);
}

Result<std::optional<ArchiveRecord>> FindTree(FileSystem& fs, const std::vector<ArchiveMember>& members,
                                              const std::string& directory, Links links) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> files, ListTree(fs, directory, links));
  const ArchiveRecord listed = DescribeTree(directory, files, links);
  for (const ArchiveMember& member : members) {
    if (member.state != MemberState::kVerified || member.record->source != listed.source) continue;
    const ArchiveRecord& stored = *member.record;
    if (!CompareTrees(listed, WithoutSums(stored)).ok() ||
        stored.tree->followed_links != listed.tree->followed_links)
      continue;
    CAIRN_ASSIGN_OR_RETURN(const ArchiveRecord now, DescribeTree(fs, directory, links));
    if (CompareTrees(now, stored).ok()) return member.record;
  }
  return std::optional<ArchiveRecord>();
}

}  // namespace cairn
