// A member is read in place through TarFileSystem, past the page cache. A step is compared with its own
// digests, a tree with the SHA-256 of each file in the record. Then the record is compared with the tar's
// headers, entry by entry, and with the list of sums, which no digest of the step covers. Problems are
// collected instead of ending the check.

#include "tools/archive/store/verify.h"

#include <map>

#include "ckpt/base/sha256.h"
#include "ckpt/io/file_scan.h"
#include "tools/archive/store/bundle.h"
#include "tools/archive/tar/record_sums.h"
#include "tools/archive/tar/tar_file_system.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

constexpr int kVerifyJobs = 2;  // files at once: one reads while one computes

// Directories and links, by name.
std::map<std::string_view, const ArchivedEntry*> ByName(const std::vector<ArchivedEntry>& entries) {
  std::map<std::string_view, const ArchivedEntry*> named;
  for (const ArchivedEntry& entry : entries) named[entry.name] = &entry;
  return named;
}

Status CheckOthers(const TarIndex& index, const ArchiveRecord& record) {
  const std::vector<ArchivedEntry> none;
  const auto there = ByName(index.others), told = ByName(record.tree ? record.tree->entries : none);
  for (const auto& [name, entry] : told)
    if (const auto found = there.find(name); found == there.end() || *found->second != *entry)
      return Corrupt("its entry '{}' differs from the sidecar", name);
  if (there.size() != told.size())
    return Corrupt("has {} directories and links, but the sidecar says {}", there.size(), told.size());
  return OkStatus();
}

// Adds to each problem the piece of the tar in which it lies.
void NamePieces(VerifyReport& report, const TarPlace& place, const ArchiveRecord& record) {
  if (place.pieces.empty()) return;
  const std::string prefix = JoinPath(place.root, "");
  for (Problem& problem : report.problems) {
    if (!problem.file.starts_with(prefix)) continue;
    for (const std::string& path : FilesWith(place, record, {problem.file.substr(prefix.size())}))
      problem.what += fmt::format(", in {}", path);
  }
}

// Compares every file of a tree with its SHA-256.
VerifyReport VerifyTree(TarFileSystem& view, const std::string& root, const ArchiveRecord& record,
                        const ByteProgress& progress) {
  VerifyReport report;
  for (const ArchivedFile& file : record.files) {
    const std::string path = JoinPath(root, file.name);
    const auto sha256 = HashThrough(view, path, file.bytes, [&](std::span<const std::byte> bytes) {
      report.bytes_checked += bytes.size();
      if (progress) progress(report.bytes_checked);
      return OkStatus();
    });
    if (!sha256.ok())
      report.Add(sha256.status(), path);
    else if (*sha256 != file.sha256)
      report.Add(Corrupt("does not match its SHA-256"), path);
  }
  return report;
}

}  // namespace

Status CheckAgainstRecord(TarFileSystem& view, const ArchiveRecord& record) {
  const TarIndex& index = view.index();
  if (index.directory != record.directory)
    return Corrupt("holds '{}', but the sidecar says '{}'", index.directory, record.directory);
  if (index.files.size() != record.files.size() + 1)
    return Corrupt("has {} files, but the sidecar says {}", index.files.size(), record.files.size() + 1);
  std::map<std::string_view, const ArchivedFile*> named;
  for (const ArchivedFile& file : index.files) named[file.name] = &file;
  for (const ArchivedFile& file : record.files) {
    const auto found = named.find(file.name);
    const ArchivedFile* const there = found == named.end() ? nullptr : found->second;
    if (there == nullptr || there->offset != file.offset || there->stored_bytes != file.stored_bytes ||
        there->packed != file.packed)
      return Corrupt("its entry {} is not where the sidecar says{}", file.name,
                     record.pieces.empty() ? "" : "; is a piece another tar's, or are two swapped?");
    if (there->bytes != file.bytes)
      return Corrupt("its entry {} has {} bytes, but the sidecar says {}", file.name, there->bytes,
                     file.bytes);
    if (record.tree && there->facts != file.facts)
      return Corrupt("its entry {} has a different mode, owner or time in the sidecar", file.name);
  }
  CAIRN_RETURN_IF_ERROR(CheckOthers(index, record));
  CAIRN_ASSIGN_OR_RETURN(const std::string sums,
                         ReadSmallFile(view, JoinPath(view.root(), SumsName(record)), kMaxRecordBytes));
  if (sums != Sha256Sums(record)) return Corrupt("its {} differs from the sidecar's", SumsName(record));
  return OkStatus();
}

Result<std::string> HashThrough(FileSystem& fs, const std::string& path, uint64_t bytes,
                                const ByteSink& sink) {
  Sha256 sha;
  if (bytes == 0) return sha.FinishHex();
  CAIRN_ASSIGN_OR_RETURN(const auto scan, FileScan::Open(fs, path, bytes, Direct::kAuto, /*may_map=*/false));
  while (scan->offset() < bytes) {
    CAIRN_ASSIGN_OR_RETURN(const auto next, scan->Next(bytes - scan->offset()));
    sha.Update(next);
    if (sink) CAIRN_RETURN_IF_ERROR(sink(next));
  }
  return sha.FinishHex();
}

Status CopyVerified(FileSystem& fs, const StepReader& step, const ManifestFile& file, const ByteSink& sink) {
  const StepIdentity identity{step.manifest().run, step.manifest().step};
  VerifyReport report;
  CAIRN_RETURN_IF_ERROR(VerifyShard(fs, {step.DirectoryOf(file.name), file, step.catalog(), identity}, report,
                                    sink, /*may_map=*/false));
  CAIRN_RETURN_IF_ERROR(report.status());
  if (report.bytes_checked != file.bytes)
    return Corrupt("{}: only {} of {} bytes were read", JoinPath(step.DirectoryOf(file.name), file.name),
                   report.bytes_checked, file.bytes);
  return OkStatus();
}

VerifyReport VerifyTar(FileSystem& fs, const TarPlace& place, const ArchiveRecord* record,
                       const ByteProgress& progress) {
  const std::string& path = place.root;
  VerifyReport report;
  const auto problem = [&](const Status& status) {
    report.Add(status, path);
    return report;
  };
  const auto view = TarFileSystem::Open(fs, place, /*past_cache=*/true);
  if (!view.ok()) return problem(view.status());
  if (place.form == Form::kFiles) {
    if (record == nullptr)
      return problem(Corrupt("has lost its sidecar; `cairn archive ls STORE --rebuild` makes it again"));
    report = VerifyTree(**view, path, *record, progress);
  } else {
    const auto step = StepReader::Open(**view, path);
    if (!step.ok()) return problem(step.status());
    report = VerifyHash(**view, **step, progress, kVerifyJobs);
    report.Join(VerifyStructure(**step));
    if (record != nullptr && ToHex(DigestOf(EncodeManifest((*step)->manifest()))) != record->manifest_digest)
      problem(Corrupt("its manifest is not the one in the sidecar"));
  }
  if (record == nullptr) return report;
  if (const Status status = CheckAgainstRecord(**view, *record); !status.ok()) problem(status);
  NamePieces(report, place, *record);
  return report;
}

VerifyReport VerifyMember(const Store& store, const ArchiveMember& member, const ByteProgress& progress) {
  const Problem damage{store.Path(member.file()), {}, "", member.trouble};
  const bool damaged = member.state == MemberState::kDamaged;
  if ((damaged && member.bytes == 0) || ParseBundleName(member.tar)) return {.problems = {damage}};
  const ArchiveRecord* const record = member.record ? &*member.record : nullptr;
  const Result<TarPlace> place = MemberRef{store, member.tar}.Place(record);
  VerifyReport report;
  if (place.ok())
    report = VerifyTar(store.fs(), *place, record, progress);
  else
    report.Add(place.status(), damage.file);
  if (damaged && place.ok()) report.problems.push_back(damage);
  return report;
}

}  // namespace cairn
