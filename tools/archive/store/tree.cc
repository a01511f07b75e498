// Listing follows no link; the identity is a SHA-256 over one line for each entry; comparison goes entry by
// entry, so that a message can name the first difference.
#include "tools/archive/store/tree.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <tuple>

#include "ckpt/base/canonical_path.h"
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

EntryFacts FactsOf(const FileInfo& info) {
  const int64_t seconds = info.modified_unix_seconds;
  const int64_t fraction = UnixNanoseconds(-seconds, info.modified_unix_nanoseconds);
  // libarchive writes a fraction of a second before 1970 as one after it.
  return {.mode = info.mode,
          .user = info.user,
          .group = info.group,
          .modified_unix_seconds = seconds,
          .modified_nanoseconds = seconds < 0 ? 0 : static_cast<uint32_t>(fraction)};
}

EntryKind KindOf(const FileInfo& info) {
  return info.kind == FileKind::kFile   ? EntryKind::kFile
         : info.kind == FileKind::kLink ? EntryKind::kLink
                                        : EntryKind::kDirectory;
}

// Lists one tree.
class Lister {
 public:
  Lister(FileSystem& fs, const std::string& root, Links links)
      : fs_(fs), root_(root), canonical_(CanonicalPath(root)), links_(links) {}

  Result<std::vector<TreeFile>> List() && {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo root, fs_.Stat(root_));
    above_.push_back({root.device, root.inode});
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
    const Result<FileInfo> found = fs_.LinkStat(path);
    if (!found.ok()) return NotFound("{}; was it changed meanwhile?", found.status().message());
    TreeFile file{.name = name, .info = *found};
    if (file.info.kind == FileKind::kLink) {
      CAIRN_ASSIGN_OR_RETURN(file.target, fs_.ReadLink(path));
      file.leaves = followed || LeadsOut(canonical_, below, file.target);
      CAIRN_RETURN_IF_ERROR(Judge(path, file));
      followed = followed || file.leaves;
    }
    if (file.info.kind == FileKind::kOther)
      return NotSupported("{}: it is not a file, directory or link; move it away first", path);
    file.kind = KindOf(file.info);
    file.facts = FactsOf(file.info);
    if (file.kind == EntryKind::kLink) file.facts.mode = 0777;  // a link has none of its own
    if (file.kind != EntryKind::kFile) file.info.bytes = 0;
    if (files_.size() == kMaxTreeEntries || !IsPlainPath(name))
      return NotSupported("{}: it has more files, or a longer path, than an archive takes", path);
    files_.push_back(std::move(file));
    const FileInfo& info = files_.back().info;
    return info.is_directory() ? Enter(name, {info.device, info.inode}, followed) : OkStatus();
  }

  // Decides about a link; if it is followed, `file` becomes its target.
  Status Judge(const std::string& path, TreeFile& file) {
    if (!file.leaves || links_ == Links::kKeep) return OkStatus();
    if (links_ == Links::kRefuse)
      return NotSupported(
          "{}: this link leads out of the tree, to {}; --links keep stores such links as links, without "
          "their targets, --links follow stores their targets instead",
          path, file.target);
    const Result<FileInfo> target = fs_.Stat(path);
    if (!target.ok())
      return NotFound("{}: the link leads to {}, which cannot be read: {}", path, file.target,
                      target.status().message());
    file.info = *target;
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
  if (start * 1'000'000'000 - file.info.changed_unix_nanoseconds > kSettled) hashes[path] = {file, sha};
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

// For a comparison by names, kinds, sizes and modes, which needs no reading.
ArchiveRecord WithoutSums(ArchiveRecord record) {
  for (ArchivedFile& file : record.files) file.sha256.clear();
  return record;
}

// Reads the files that are listed. `fresh`: even those whose SHA-256 this process knows.
Result<ArchiveRecord> ReadListed(FileSystem& fs, const std::string& directory, Links links,
                                 const std::vector<TreeFile>& files, bool fresh) {
  ArchiveRecord record = DescribeTree(fs, directory, files, links);
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
  const auto identity = [](const TreeFile& f) {
    return std::tie(f.name, f.kind, f.target, f.facts, f.info.bytes, f.info.device, f.info.inode,
                    f.info.changed_unix_nanoseconds);
  };
  return identity(*this) == identity(other);
}

Result<std::vector<TreeFile>> ListTree(FileSystem& fs, const std::string& directory, Links links) {
  return Lister(fs, directory, links).List();
}

ArchiveRecord DescribeTree(FileSystem& fs, const std::string& directory, const std::vector<TreeFile>& files,
                           Links links) {
  ArchiveRecord record = NameTree(fs, directory);
  record.tree = ArchivedTree{.followed_links = links == Links::kFollow};
  if (const Result<FileInfo> root = fs.Stat(directory); root.ok())
    record.tree->entries.push_back({"", EntryKind::kDirectory, "", FactsOf(*root)});
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
  CAIRN_RETURN_IF_ERROR(CompareTrees(DescribeTree(fs, directory, files, links), WithoutSums(record)));
  CAIRN_ASSIGN_OR_RETURN(const ArchiveRecord now, ReadListed(fs, directory, links, files, /*fresh=*/true));
  return CompareTrees(now, record);
}

Result<std::optional<ArchiveRecord>> FindTree(FileSystem& fs, const std::vector<ArchiveMember>& members,
                                              const std::string& directory, Links links) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> files, ListTree(fs, directory, links));
  const ArchiveRecord listed = DescribeTree(fs, directory, files, links);
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
