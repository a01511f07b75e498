// Steps and trees are restored the same way: compare the tar's headers with the record, check the free space,
// write into a partial directory beside the destination, read everything back, rename. RUN/step-N is made by
// Committer, like every step of a run. A step is compared
// with its own digests, a tree with the SHA-256 of each file. A tree's root is closed to other users
// meanwhile. Modes and times of directories come last, the deepest first, because each file that is made
// changes the time of its directory.

#include "tools/archive/store/restore.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/io/stream_writer.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/committer.h"
#include "tools/archive/tar/tar_file_system.h"

namespace cairn {
namespace {

Status Extract(FileSystem& fs, FileSystem& view, const StepReader& step, const std::string& partial,
               ProgressSum& progress) {
  WriteRing ring(fs);
  for (const ManifestFile& file : step.manifest().files) {
    CAIRN_ASSIGN_OR_RETURN(const auto out,
                           StreamWriter::Create(fs, ring, JoinPath(partial, file.name), file.bytes));
    CAIRN_RETURN_IF_ERROR(CopyVerified(view, step, file, [&](std::span<const std::byte> bytes) {
      progress.Add(bytes.size());
      return out->Append(bytes);
    }));
    CAIRN_RETURN_IF_ERROR(out->Finish());
  }
  CAIRN_RETURN_IF_ERROR(
      WriteSmallFile(fs, JoinPath(partial, kManifestName), EncodeManifest(step.manifest())));
  return fs.SyncDir(partial);
}

Status VerifyRestored(FileSystem& fs, const std::string& partial, ProgressSum& progress) {
  CAIRN_ASSIGN_OR_RETURN(const auto restored, StepReader::Open(fs, partial));
  return VerifyHash(fs, *restored, progress.OnTop()).status();
}

Status RestoreStep(FileSystem& fs, FileSystem& view, const StepReader& step, const std::string& target,
                   const ByteProgress& progress) {
  MarkedContents contents{.step = true};
  for (const ManifestFile& file : step.manifest().files) contents.files.push_back(file.name);
  ProgressSum done(progress);
  const auto restore = [&](auto& place, const std::string& partial) -> Status {
    CAIRN_RETURN_IF_ERROR(Extract(fs, view, step, partial, done));
    CAIRN_RETURN_IF_ERROR(VerifyRestored(fs, partial, done));
    return place.Publish();
  };
  if (!IsInRun(target)) {
    CAIRN_ASSIGN_OR_RETURN(PartialDir partial, PartialDir::MakeFor(fs, target, contents));
    return restore(partial, partial.path());
  }
  Committer::NewStep what;
  what.run_dir = ParentDir(target);
  what.commit = BranchedStep::Of(step.manifest());
  what.beside = contents.files;
  Result<Committer> committer = Committer::Create(fs, what);
  if (!committer.ok()) return AskForAnotherPlace(committer.status(), target);
  return restore(*committer, committer->partial());
}

// Rebuilds one tree.
class TreeRestorer {
 public:
  TreeRestorer(FileSystem& fs, TarFileSystem& view, const ArchiveRecord& record, const std::string& root,
               bool same_owner, const ByteProgress& progress)
      : fs_(fs),
        view_(view),
        record_(record),
        root_(root),
        same_owner_(same_owner),
        progress_(progress),
        ring_(fs) {}

  Status Restore() {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo made, fs_.LinkStat(root_));
    CAIRN_RETURN_IF_ERROR(fs_.SetMode(root_, 0700));
    CAIRN_RETURN_IF_ERROR(MakeDirectories());
    for (const ArchivedFile& file : record_.files) CAIRN_RETURN_IF_ERROR(MakeFile(file));
    if (record_.tree) CAIRN_RETURN_IF_ERROR(MakeLinks());
    for (const std::string& directory : directories_)
      CAIRN_RETURN_IF_ERROR(fs_.SyncDir(JoinPath(root_, directory)));
    CAIRN_RETURN_IF_ERROR(fs_.SyncDir(root_));
    return record_.tree ? SetDirectories() : fs_.SetMode(root_, made.mode);
  }

 private:
  // Those of the record; if an old record has none, the directories of the files.
  Status MakeDirectories() {
    for (const ArchivedFile& file : record_.files) AddDirectories(file.name, directories_);
    if (record_.tree)
      for (const ArchivedEntry& entry : record_.tree->entries)
        if (entry.kind == EntryKind::kDirectory && !entry.name.empty()) directories_.insert(entry.name);
    for (const std::string& directory : directories_)  // sorted: those above come first
      CAIRN_RETURN_IF_ERROR(fs_.MakeDir(JoinPath(root_, directory)));
    return OkStatus();
  }

  // Compared with its SHA-256 on its way and again on the disk.
  Status MakeFile(const ArchivedFile& file) {
    const std::string from = JoinPath(view_.root(), file.name), to = JoinPath(root_, file.name);
    CAIRN_ASSIGN_OR_RETURN(const auto out, StreamWriter::Create(fs_, ring_, to, file.bytes));
    const auto extract = [&](std::span<const std::byte> bytes) {
      progress_.Add(bytes.size());
      return WriteWithHoles(*out, file.bytes, bytes);
    };
    CAIRN_ASSIGN_OR_RETURN(const std::string read, HashThrough(view_, from, file.bytes, extract));
    CAIRN_RETURN_IF_ERROR(out->Finish());
    if (read != file.sha256) return Corrupt("{}: does not match its SHA-256", from);
    const auto count = [&](std::span<const std::byte> bytes) {
      progress_.Add(bytes.size());
      return OkStatus();
    };
    CAIRN_ASSIGN_OR_RETURN(const std::string written, HashThrough(fs_, to, file.bytes, count));
    if (written != file.sha256) return Corrupt("{}: the disk did not keep what was written", to);
    return record_.tree ? SetFacts(to, EntryKind::kFile, file.facts) : OkStatus();
  }

  // A page of zeros becomes a hole, except the last one, which gives the file its size.
  static Status WriteWithHoles(StreamWriter& out, uint64_t file_bytes, std::span<const std::byte> bytes) {
    static constexpr std::array<std::byte, kPageBytes> kZeros{};
    while (!bytes.empty()) {
      const uint64_t in_page = out.bytes() % kPageBytes;
      const std::span part = bytes.first(std::min<uint64_t>(bytes.size(), kPageBytes - in_page));
      const bool hole = part.size() == kPageBytes && out.bytes() + kPageBytes < file_bytes &&
                        std::memcmp(part.data(), kZeros.data(), kPageBytes) == 0;
      CAIRN_RETURN_IF_ERROR(hole ? out.Skip(kPageBytes) : out.Append(part));
      bytes = bytes.subspan(part.size());
    }
    return OkStatus();
  }

  Status MakeLinks() {
    for (const ArchivedEntry& entry : record_.tree->entries) {
      if (entry.kind != EntryKind::kLink) continue;
      const std::string path = JoinPath(root_, entry.name);
      CAIRN_RETURN_IF_ERROR(fs_.MakeLink(entry.target, path));
      CAIRN_RETURN_IF_ERROR(SetFacts(path, EntryKind::kLink, entry.facts));
    }
    return OkStatus();
  }

  // The deepest first: a file that is made in a directory changes its time.
  Status SetDirectories() {
    std::vector<ArchivedEntry> entries = record_.tree->entries;
    std::ranges::sort(entries, std::ranges::greater(), &ArchivedEntry::name);
    for (const ArchivedEntry& entry : entries)
      if (entry.kind == EntryKind::kDirectory)
        CAIRN_RETURN_IF_ERROR(SetFacts(JoinPath(root_, entry.name), entry.kind, entry.facts));
    return OkStatus();
  }

  // Owner, mode, time, in this order: chown clears bits of the mode. Set-user-ID and set-group-ID are
  // restored only if the file has its owner and group.
  Status SetFacts(const std::string& path, EntryKind kind, const EntryFacts& facts) {
    constexpr uint32_t kLentRights = 06000;
    if (same_owner_)
      CAIRN_RETURN_IF_ERROR(
          fs_.SetOwner(path, facts.user, facts.group).WithContext("--no-same-owner leaves the owner"));
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.LinkStat(path));
    const bool lends = info.user == facts.user && info.group == facts.group;
    if (kind != EntryKind::kLink)
      CAIRN_RETURN_IF_ERROR(fs_.SetMode(path, lends ? facts.mode : facts.mode & ~kLentRights));
    return fs_.SetModified(path, facts.modified_unix_seconds, facts.modified_nanoseconds);
  }

  FileSystem& fs_;
  TarFileSystem& view_;
  const ArchiveRecord& record_;
  const std::string& root_;
  const bool same_owner_;
  ProgressSum progress_;
  WriteRing ring_;
  std::set<std::string> directories_;
};

Status RestoreTree(FileSystem& fs, TarFileSystem& view, const ArchiveRecord& record,
                   const std::string& target, bool same_owner, const ByteProgress& progress) {
  CAIRN_RETURN_IF_ERROR(ClearPlace(fs, target));
  uint64_t bytes = 0;
  MarkedContents contents;
  for (const ArchivedFile& file : record.files) {
    bytes += file.bytes;
    contents.files.push_back(file.name);
  }
  if (record.tree)
    for (const ArchivedEntry& entry : record.tree->entries)
      if (!entry.name.empty())
        contents.files.push_back(entry.name + (entry.kind == EntryKind::kDirectory ? "/" : ""));
  CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, target, bytes));
  CAIRN_ASSIGN_OR_RETURN(PartialDir partial, PartialDir::MakeFor(fs, target, contents));
  CAIRN_RETURN_IF_ERROR(TreeRestorer(fs, view, record, partial.path(), same_owner, progress).Restore());
  return partial.Publish();
}

// The whole member, by its headers, which must agree with its record. `record`: null if it has none.
Result<std::unique_ptr<TarFileSystem>> OpenWhole(const MemberRef& member, const ArchiveRecord* record) {
  CAIRN_ASSIGN_OR_RETURN(const TarPlace place, member.Place(record));
  CAIRN_ASSIGN_OR_RETURN(auto view, TarFileSystem::Open(member.store.fs(), place, /*past_cache=*/false));
  if (record != nullptr) CAIRN_RETURN_IF_ERROR(CheckAgainstRecord(*view, *record).WithContext(view->root()));
  return view;
}

}  // namespace

std::string DestinationPath(const std::string& destination) {
  return std::string(WithoutSlashes(std::filesystem::path(destination).lexically_normal().string()));
}

Status CheckDestination(FileSystem& fs, const std::string& destination, int64_t step) {
  CAIRN_RETURN_IF_ERROR(ClearPlace(fs, destination));
  if (!IsInRun(destination) || LastName(destination) == StepDirName(step)) return OkStatus();
  return InvalidArgument("{}: the archived step is {}; name the destination {}", destination, step,
                         StepDirName(step));
}

bool IsInRun(const std::string& destination) { return ParseStepDirName(LastName(destination)).has_value(); }

Status AskForAnotherPlace(const Status& failed, const std::string& destination) {
  if (failed.kind() != StatusKind::kAlreadyExists || !IsInRun(destination)) return failed;
  return AlreadyExists("{}, for example {}, and move it from there into the run", failed.message(),
                       destination + ".restored");
}

Result<std::unique_ptr<TarFileSystem>> OpenMember(const MemberRef& member) {
  const Result<ArchiveRecord> record = ReadRecord(member);
  if (!record.ok()) return OpenWhole(member, nullptr);
  return TarFileSystem::Open(member.store.fs(), member.store.Place(*record), *record);
}

Status RestoreTar(const MemberRef& member, const std::string& destination, const ByteProgress& progress,
                  bool same_owner) {
  FileSystem& fs = member.store.fs();
  const std::string target = DestinationPath(destination);
  const Result<ArchiveRecord> record = ReadRecord(member);
  CAIRN_ASSIGN_OR_RETURN(const auto view, OpenWhole(member, record.ok() ? &*record : nullptr));
  if (const auto parts = ParseTarName(member.tar); parts && parts->form == Form::kFiles) {
    if (!record.ok()) return record.status();
    return RestoreTree(fs, *view, *record, target, same_owner, progress);
  }
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(*view, view->root()));
  if (record.ok() && ToHex(DigestOf(EncodeManifest(step->manifest()))) != record->manifest_digest)
    return Corrupt("{}: its manifest is not the one in the sidecar", view->root());
  CAIRN_RETURN_IF_ERROR(CheckDestination(fs, target, step->manifest().step));
  CAIRN_RETURN_IF_ERROR(CheckCoverage(step->catalog()).WithContext(step->directory()));
  CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, target, step->manifest().bytes()));
  return RestoreStep(fs, *view, *step, target, progress);
}

}  // namespace cairn
