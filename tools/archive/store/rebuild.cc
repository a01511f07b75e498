// Headers show where the files of a tar are, the list of sums at its end has their digests, and a bundle
// holds an index of its members: together they are the content of the sidecar. Every member is then proven by
// reading it.

#include "tools/archive/store/rebuild.h"

#include <algorithm>
#include <ctime>
#include <set>

#include "tools/archive/store/bundle.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/record_sums.h"
#include "tools/archive/tar/tar_file_system.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

// The digest of a tree whose tar holds only its files, as programs before record version 4 wrote it.
std::string OldTreeDigest(const TarIndex& index, const ArchiveRecord& record) {
  std::string text = "cairn tree\n";
  for (size_t i = 0; i < record.files.size(); ++i)
    text += fmt::format("{}\t{}\t{}\n", record.files[i].name, record.files[i].bytes,
                        index.files[i].facts.modified_unix_seconds);
  return ToHex(DigestOf(text));
}

// Enters the files and entries of the headers, which have no digests.
void TakeHeaders(const TarIndex& index, ArchiveRecord& record) {
  record.directory = index.directory;
  record.files.assign(index.files.begin(), index.files.end() - 1);  // the last is the list of sums
  if (index.others.empty()) {
    for (ArchivedFile& file : record.files) file.facts = {};
    return;
  }
  record.tree = ArchivedTree{.entries = index.others};
  std::ranges::sort(record.tree->entries, {}, &ArchivedEntry::name);
}

// True if reading the member's tar again may give a more complete sidecar than the existing one.
bool NeedsSidecar(const ArchiveMember& member) {
  if (member.state == MemberState::kVerified || member.bytes == 0) return false;
  return !member.record || member.record->verified_unix_seconds == 0;
}

// Returns one line for each problem.
Result<std::vector<std::string>> RebuildSidecar(const Store& store, const ArchiveMember& member) {
  using Lines = std::vector<std::string>;
  const std::string file = store.Path(member.file()), sidecar = store.Sidecar(member.file());
  if (const Status here = CheckOnDisk(store.fs(), {file}); !here.ok()) return Lines{here.message()};
  if (!member.record && store.fs().Stat(sidecar).ok())
    CAIRN_RETURN_IF_ERROR(store.fs().Rename(sidecar, sidecar + ".damaged"));
  if (ParseBundleName(member.file())) {
    Result<Lines> problems = RebuildBundle(store, member.file());
    return problems.ok() ? std::move(problems) : Lines{problems.status().message()};
  }
  const auto proof = RebuildRecord({store, member.tar}, {});
  return proof.ok() ? Lines{} : Lines{proof.status().message()};
}

}  // namespace

Result<ProvenCopy> RebuildRecord(const MemberRef& member, const ByteProgress& progress) {
  FileSystem& fs = member.store.fs();
  const std::string path = member.path();
  const auto parts = ParseTarName(member.tar);
  if (!parts) return InvalidArgument("{}: this is not the name of a tar of an archive", path);
  CAIRN_ASSIGN_OR_RETURN(const TarPlace place, FindTar(fs, path));
  CAIRN_ASSIGN_OR_RETURN(const auto view, TarFileSystem::Open(fs, place, /*past_cache=*/true));
  ArchiveRecord record;
  if (parts->form != Form::kFiles) {
    CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(*view, path));
    record = RecordOf(step->manifest(), parts->run);
  }
  record.form = parts->form;
  record.name = parts->run;
  record.step = parts->step;
  TakeHeaders(view->index(), record);
  const std::string sums_path = JoinPath(path, view->index().files.back().name);
  CAIRN_ASSIGN_OR_RETURN(const std::string sums, ReadSmallFile(*view, sums_path, kMaxRecordBytes));
  CAIRN_RETURN_IF_ERROR(TakeSha256Sums(sums, record).WithContext(path));
  if (record.form == Form::kFiles)
    record.manifest_digest = record.run =
        record.tree ? TreeDigest(record) : OldTreeDigest(view->index(), record);
  CAIRN_ASSIGN_OR_RETURN(record.tar_bytes, StatTar(fs, place));
  record.pieces = place.pieces;
  if (TarName(record) != member.tar)
    return Corrupt("{}: it holds {}; it was renamed, or files in it are missing", path, TarName(record));
  CAIRN_ASSIGN_OR_RETURN(const ProvenCopy proof, ProveMember(member.store, record, progress));
  CAIRN_RETURN_IF_ERROR(WriteRecord(member.store, proof.record()));
  return proof;
}

Result<std::vector<std::string>> RebuildBundle(const Store& store, const std::string& name) {
  FileSystem& fs = store.fs();
  const std::string path = store.Path(name);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  CAIRN_ASSIGN_OR_RETURN(const ArchivedFile entry, ReadLastEntry(fs, path));
  if (entry.name != BundleIndexName(name) || entry.bytes > kMaxRecordBytes)
    return Corrupt("{}: its last entry '{}' is not an index of a bundle's members", path, entry.name);
  std::string text(entry.bytes, '\0');
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  CAIRN_RETURN_IF_ERROR(file->ReadAt(entry.offset, std::as_writable_bytes(std::span(text))));
  Result<Bundle> bundle = DecodeBundle(text, name);
  if (!bundle.ok()) return bundle.status().WithContext(path);
  bundle->tar_bytes = info.bytes;
  std::vector<std::string> problems;
  for (ArchiveRecord& member : bundle->members) {
    const Status whole = ProveMember(store, member, {}).status();
    if (!whole.ok()) problems.push_back(whole.message());
    member.verified_unix_seconds = whole.ok() ? std::time(nullptr) : 0;
    member.claims.clear();  // those in the tar are as old as the tar: later claims are not known
  }
  if (problems.size() == bundle->members.size()) return Corrupt("{}: none of its members is whole", path);
  if (const auto there = fs.Stat(store.Parity(name)); there.ok())
    bundle->parity = {name + std::string(kParitySuffix), there->bytes};
  CAIRN_RETURN_IF_ERROR(WriteBundleRecord(store, *bundle));
  return problems;
}

Result<std::vector<std::string>> RebuildSidecars(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(const LockFile lock, LockStore(store));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore(store));
  std::vector<std::string> problems;
  std::set<std::string> done;  // a bundle is rebuilt once
  for (const ArchiveMember& member : members) {
    if (!NeedsSidecar(member) || !done.insert(member.file()).second) continue;
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> lines, RebuildSidecar(store, member));
    problems.insert(problems.end(), lines.begin(), lines.end());
  }
  return problems;
}

}  // namespace cairn
