// One bundle at a time: copy the entries of its members, add the index, close, prove every member from the
// disk, then write parity and sidecar and rename; only then the tars that it replaces are removed. After each
// bundle the store is listed and planned again, so the next one starts from what exists. If a bundle fails,
// its members are read where they are: a damaged one becomes a problem of the run and its file is skipped; if
// all are whole, the failure itself is reported.

#include "tools/archive/bundle/bundler.h"

#include <algorithm>
#include <ctime>
#include <set>

#include "ckpt/step/partial_dir.h"
#include "tools/archive/bundle/scrub.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/store/store_member.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/tar_parity.h"
#include "tools/archive/tar/tar_writer.h"

namespace cairn {
namespace {

constexpr uint64_t kCopyBytes = 4 << 20;  // one read

// Copies a member's entries into the bundle; returns its new record. Reads the headers of its tar: the
// entries must be those of the record.
Result<ArchiveRecord> CopyMember(const Store& store, const ArchiveRecord& member, const std::string& bundle,
                                 TarWriter& tar, ProgressSum& progress) {
  const TarPlace place = store.Place(member);
  CAIRN_ASSIGN_OR_RETURN(const TarIndex index, ReadTarIndex(store.fs(), place));
  const uint64_t bytes = index.end - place.begin;
  CAIRN_ASSIGN_OR_RETURN(const auto file, store.fs().OpenForRead(place.file));
  ArchiveRecord moved = member;
  moved.bundle = bundle;
  moved.bundle_offset = tar.offset();
  moved.tar_bytes = bytes;
  moved.parity = {};
  for (ArchivedFile& f : moved.files) f.offset = f.offset - place.begin + moved.bundle_offset;
  std::vector<std::byte> buffer(std::min(kCopyBytes, bytes));
  for (uint64_t at = 0; at < bytes; at += buffer.size()) {
    const std::span part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), bytes - at));
    CAIRN_RETURN_IF_ERROR(file->ReadAt(place.begin + at, part));
    CAIRN_RETURN_IF_ERROR(tar.Append(part));
    progress.Add(part.size());
  }
  return moved;
}

// Writes the members of the draft one after the other, and their index. `bundle` gets their new records.
Status WriteBundle(const Store& store, const BundleDraft& draft, TarWriter& tar, Bundle& bundle,
                   ProgressSum& progress) {
  int64_t newest = 0;
  for (const ArchiveRecord& member : draft.members) {
    CAIRN_ASSIGN_OR_RETURN(ArchiveRecord moved, CopyMember(store, member, draft.name, tar, progress));
    newest = std::max(newest, moved.saved_unix_seconds);
    bundle.members.push_back(std::move(moved));
  }
  bundle.tar_bytes = tar.offset();  // what the members take
  const std::string index = EncodeBundle(bundle);
  CAIRN_RETURN_IF_ERROR(tar.Begin(BundleIndexName(bundle.name), index.size(), newest));
  CAIRN_RETURN_IF_ERROR(tar.Write(std::as_bytes(std::span(index))));
  CAIRN_ASSIGN_OR_RETURN(bundle.tar_bytes, tar.Finish());
  return OkStatus();
}

// Checks from the disk that `file` is what `bundle` says.
Status ProveBundle(const Store& store, const std::string& file, Bundle& bundle, ProgressSum& progress) {
  for (ArchiveRecord& member : bundle.members) {
    TarPlace place = store.Place(member);
    place.file = file;
    CAIRN_RETURN_IF_ERROR(VerifyTar(store.fs(), place, &member, progress.OnTop()).status());
    progress.Add(member.tar_bytes);
    member.verified_unix_seconds = std::time(nullptr);
  }
  CAIRN_ASSIGN_OR_RETURN(const ArchivedFile last, ReadLastEntry(store.fs(), file));
  if (last.name != BundleIndexName(bundle.name)) return Corrupt("{}: it has no index of its members", file);
  return OkStatus();
}

// Makes the bundle of `draft`, proven and with its sidecar. The tars that it replaces still exist.
Result<Bundle> MakeBundle(const Store& store, const BundleDraft& draft, double parity,
                          const ByteProgress& progress) {
  FileSystem& fs = store.fs();
  const std::string path = store.Path(draft.name), partial = path + std::string(kPartialSuffix);
  CAIRN_ASSIGN_OR_RETURN(const uint64_t parity_bytes, ParityFileBytes(draft.bytes, parity));
  CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, store.directory(), draft.bytes + parity_bytes));
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial));
  Bundle bundle{.name = draft.name};
  ProgressSum done(progress);
  const auto write = [&]() -> Status {
    WriteRing ring(fs);
    CAIRN_ASSIGN_OR_RETURN(const auto tar, TarWriter::Create(fs, ring, partial));
    CAIRN_RETURN_IF_ERROR(WriteBundle(store, draft, *tar, bundle, done));
    CAIRN_RETURN_IF_ERROR(ProveBundle(store, partial, bundle, done));
    if (parity > 0) {
      CAIRN_ASSIGN_OR_RETURN(bundle.parity, WriteTarParity(fs, path, parity, PlaceOfTar(partial)));
    }
    // The tar comes last: a sidecar without its tar does not claim members that are elsewhere; a tar without
    // its sidecar would.
    CAIRN_RETURN_IF_ERROR(WriteBundleRecord(store, bundle));
    return fs.Rename(partial, path);
  };
  if (const Status status = write(); !status.ok()) {
    if (fs.RemoveFile(partial).ok())  // otherwise it was renamed, despite the error, or never made
      for (const std::string& beside : {store.Parity(draft.name), store.Sidecar(draft.name)})
        (void)fs.RemoveFile(beside);
    return status;
  }
  CAIRN_RETURN_IF_ERROR(store.Sync());
  return bundle;
}

struct Troubles {
  std::vector<std::string> problems;  // one line each
  std::set<std::string> files;        // not to be bundled in this run
};

// Removes sidecars and parity of bundles that never got their tar, if every member is proven elsewhere.
Status RemoveUnfinishedBundles(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, store.List());
  std::set<std::string> unfinished;
  for (const std::string& name : names) {
    const std::string tar = name.substr(0, name.rfind('.'));
    if ((name.ends_with(kRecordSuffix) || name.ends_with(kParitySuffix)) && ParseBundleName(tar) &&
        store.fs().Stat(store.Path(tar)).status().kind() == StatusKind::kNotFound)
      unfinished.insert(tar);
  }
  if (unfinished.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore(store));
  for (const ArchiveMember& m : members)
    if (m.state != MemberState::kVerified) unfinished.erase(m.file());
  for (const std::string& name : unfinished)
    for (const std::string& path : {store.Sidecar(name), store.Parity(name)})
      CAIRN_RETURN_IF_ERROR(RemoveIfThere(store.fs(), path));
  return store.Sync();
}

// Decides by proof between a tar and the copy of the same member in a bundle, `bundled`.
Status SettleTwice(const Store& store, const ArchiveMember& bundled, Troubles& troubles) {
  const std::string bundle = bundled.file();
  if (IsStub(store.fs(), store.Path(bundle))) {  // cannot be proven until it is back from tape
    troubles.files.insert(bundled.tar);
    return OkStatus();
  }
  const Status proof = ProveMember(store, *bundled.record, {}).status();
  if (proof.ok()) return RemoveMember(store, bundled.tar);
  troubles.problems.push_back(proof.message());
  const ArchiveMember alone = DescribeTar({store, bundled.tar});
  if (ProveMember(store, *alone.record, {}).ok()) return DropFromBundle(store, bundle, bundled.tar);
  troubles.files.insert(bundled.tar);
  return OkStatus();
}

// Finishes the work of a killed run, which leaves tars and the bundle that holds the same members.
Result<Troubles> FinishKilledRun(const Store& store) {
  Troubles troubles;
  CAIRN_RETURN_IF_ERROR(RemoveUnfinishedBundles(store));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> tars, ListTars(store));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> bundles, ListBundles(store));
  for (const std::string& bundle : bundles)
    for (const ArchiveMember& member : DescribeBundle(store, bundle))
      if (member.state == MemberState::kVerified && std::ranges::find(tars, member.tar) != tars.end() &&
          DescribeTar({store, member.tar}).state == MemberState::kVerified)
        CAIRN_RETURN_IF_ERROR(SettleTwice(store, member, troubles));
  return troubles;
}

// Finds the damaged members of the draft: one line each, and their files into `files`.
std::vector<std::string> DamagedOf(const Store& store, const BundleDraft& draft,
                                   std::set<std::string>& files) {
  std::vector<std::string> lines;
  for (const ArchiveRecord& member : draft.members) {
    const Status whole = ProveMember(store, member, {}).status();
    if (whole.ok()) continue;
    files.insert(FileOf(member));
    lines.push_back(fmt::format("{}; it was put into no bundle, repair it with archive verify --repair",
                                whole.message()));
  }
  return lines;
}

// Makes a bundle and removes the tars that it replaces. Damaged members prevent that and become `troubles`.
Status ReplaceByBundle(const Store& store, BundleDraft draft, const BundleJob& job, Troubles& troubles) {
  // Never overwrites a file, least of all one of its own sources.
  for (int attempt = 1;
       store.fs().Stat(store.Path(draft.name)).ok() || store.fs().Stat(store.Sidecar(draft.name)).ok();
       ++attempt)
    draft.name = BundleName(draft.members, attempt);
  const Result<Bundle> bundle =
      MakeBundle(store, draft, job.parity, job.progress ? job.progress(draft) : ByteProgress());
  if (!bundle.ok()) {
    const std::vector<std::string> lines = DamagedOf(store, draft, troubles.files);
    if (!store.List().ok()) return bundle.status();  // the disk failed, the members are not damaged
    troubles.problems.insert(troubles.problems.end(), lines.begin(), lines.end());
    return lines.empty() ? bundle.status() : OkStatus();
  }
  for (const std::string& file : draft.files) CAIRN_RETURN_IF_ERROR(RemoveMember(store, file));
  if (job.made) job.made(draft, *bundle);
  return OkStatus();
}

}  // namespace

Result<std::vector<std::string>> MakeBundles(const Store& store, const BundleJob& job) {
  CAIRN_ASSIGN_OR_RETURN(Troubles troubles, FinishKilledRun(store));
  const auto pass_over = [&](const std::string& file) {
    return troubles.files.contains(file) || (job.pass_over && job.pass_over(file));
  };
  for (;;) {  // each starts from the store's current content
    CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore(store));
    const BundlePlan plan = PlanBundles(members, job.sizes, job.all, pass_over);
    if (plan.bundles.empty()) return std::move(troubles.problems);
    CAIRN_RETURN_IF_ERROR(ReplaceByBundle(store, plan.bundles.front(), job, troubles));
  }
}

}  // namespace cairn
