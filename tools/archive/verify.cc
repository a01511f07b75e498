#include "tools/archive/verify.h"

#include "ckpt/layout.h"
#include "tools/archive/tar_file_system.h"

namespace cairn {
namespace {

// What the step's own digests do not cover: the entries' names, and the list for sha256sum.
Status CheckAgainstRecord(FileSystem& view, const TarIndex& index, const StepReader& step,
                          const ArchiveRecord& record) {
  if (ToHex(DigestOf(EncodeManifest(step.manifest()))) != record.manifest_digest)
    return Corrupt("holds another manifest than the ledger says");
  if (index.directory != EntryDirectory(record))
    return Corrupt("holds '{}', the ledger says '{}'", index.directory, EntryDirectory(record));
  if (index.entries.size() != record.files.size() + 1)
    return Corrupt("has {} entries, the ledger says {}", index.entries.size(), record.files.size() + 1);
  CAIRN_ASSIGN_OR_RETURN(const std::string sums,
                         ReadSmallFile(view, JoinPath(step.directory(), kSumsName), kMaxRecordBytes));
  if (sums != Sha256Sums(record)) return Corrupt("its {} differs from the ledger's", kSumsName);
  return OkStatus();
}

}  // namespace

VerifyReport VerifyTar(FileSystem& fs, const std::string& store, const std::string& tar,
                       const ArchiveRecord* record, const ByteProgress& progress) {
  const std::string path = JoinPath(store, tar);
  VerifyReport report;
  const auto problem = [&](const Status& status) {
    report.problems.push_back({path, 0, "", status.message()});
  };
  const auto view = TarFileSystem::Open(fs, path, /*past_cache=*/true);
  if (!view.ok()) {
    problem(view.status());
    return report;
  }
  const auto step = StepReader::Open(**view, path);
  if (!step.ok()) {
    problem(step.status());
    return report;
  }
  report = VerifyHash(**view, **step, progress);
  for (Problem& found : VerifyStructure(**step).problems) report.problems.push_back(std::move(found));
  if (record != nullptr)
    if (const Status status = CheckAgainstRecord(**view, (*view)->index(), **step, *record); !status.ok())
      problem(status);
  return report;
}

VerifyReport VerifyMember(FileSystem& fs, const std::string& store, const ArchiveMember& member,
                          const ByteProgress& progress) {
  if (member.state == MemberState::kDamaged && member.bytes == 0)
    return {.problems = {{JoinPath(store, member.tar), 0, "", member.trouble}}};
  VerifyReport report = VerifyTar(fs, store, member.tar, member.record ? &*member.record : nullptr, progress);
  if (member.state == MemberState::kDamaged)
    report.problems.push_back({JoinPath(store, member.tar), 0, "", member.trouble});
  return report;
}

}  // namespace cairn
