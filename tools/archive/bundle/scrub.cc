// A repair tries the parity, then the source. From parity the whole file is computed again next to the
// damaged one, which it replaces only when every member in it is proven. From the source the content is
// stored again and counts only under the same name, that is, with the same digest. Weights are stripped
// again, from their step or from its full copy in the store. A member of a bundle that was stored again has
// its own tar, and is removed from the bundle.

#include "tools/archive/bundle/scrub.h"

#include <algorithm>
#include <ctime>

#include "tools/archive/store/archiver.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/store/source.h"
#include "tools/archive/store/store_member.h"
#include "tools/archive/tar/tar_parity.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

// All members in the member's file: itself, or those of its bundle.
Result<std::vector<ArchiveRecord>> RecordsBeside(const Store& store, const ArchiveRecord& record) {
  if (record.bundle.empty())
    return record.parity.name.empty() ? Result<std::vector<ArchiveRecord>>(NotFound("it has no parity"))
                                      : std::vector<ArchiveRecord>{record};
  CAIRN_ASSIGN_OR_RETURN(Bundle bundle, ReadBundle(store, record.bundle));
  if (bundle.parity.name.empty()) return NotFound("its bundle has no parity");
  return std::move(bundle.members);
}

// Notes that all members of a bundle were just read back.
Status NoteProven(const Store& store, const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(Bundle bundle, ReadBundle(store, name));
  for (ArchiveRecord& member : bundle.members) member.verified_unix_seconds = std::time(nullptr);
  return WriteBundleRecord(store, bundle);
}

// The repaired tar takes the damaged one's place once it was read back whole under another name.
Status RepairFromParity(const Store& store, const ArchiveRecord& record) {
  FileSystem& fs = store.fs();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveRecord> records, RecordsBeside(store, record));
  const TarPlace damaged = store.Place(record);
  TarPlace repaired = damaged;
  repaired.file += kPartialSuffix;
  CAIRN_RETURN_IF_ERROR(RepairTar(fs, damaged, repaired).status());
  for (const ArchiveRecord& inside : records) {
    TarPlace place = store.Place(inside);
    place.file = repaired.file;
    const Status proof = VerifyTar(fs, place, &inside).status();
    if (proof.ok()) continue;
    for (const std::string& file : FilesOf(repaired)) (void)fs.RemoveFile(file);
    return Corrupt("what its parity restores is damaged, too: {}", proof.message());
  }
  const std::vector<std::string> from = FilesOf(repaired), to = FilesOf(damaged);
  for (size_t i = 0; i < from.size(); ++i) CAIRN_RETURN_IF_ERROR(fs.Rename(from[i], to[i]));
  CAIRN_RETURN_IF_ERROR(store.Sync());
  return record.bundle.empty() ? OkStatus() : NoteProven(store, record.bundle);
}

// The options with which the damaged member was stored.
StoreOptions OptionsOf(const Store& store, const ArchiveRecord& record) {
  StoreOptions options{.pack = std::ranges::any_of(record.files, &ArchivedFile::packed)};
  options.claims = record.claims;
  if (!record.pieces.empty()) options.max_tar_bytes = std::ranges::max(record.pieces);
  if (record.parity.name.empty() || record.tar_bytes == 0) return options;
  const Result<double> share = ReadParityShare(store.fs(), store.Path(record.parity.name));
  const auto by_size = static_cast<double>(record.parity.bytes) / static_cast<double>(record.tar_bytes);
  options.parity = share.ok() ? *share : std::min(kMaxTarParity, by_size);
  return options;
}

// `from` if the new copy replaces the damaged one: if it has the same content, and therefore the same name.
Result<std::string> Replaced(const ProvenCopy& copy, const ArchiveRecord& damaged, const std::string& from) {
  if (TarName(copy.record()) == TarName(damaged)) return from;
  return Corrupt("{} has different content now, which is stored as {}; this member remains damaged", from,
                 TarName(copy.record()));
}

// Strips the full copy of the step, in the same store, to its weights. `source`: why the source cannot be
// used.
Result<std::string> StripFullCopy(const Store& store, const ArchiveRecord& weights, const Status& source) {
  CAIRN_ASSIGN_OR_RETURN(const auto full, FindSound(store, [&](const ArchiveRecord& record) {
                           return record.form == Form::kFull &&
                                  record.manifest_digest == weights.derived_from;
                         }));
  if (!full) return NotFound("{}; the store has no full copy of its step", source.message());
  CAIRN_RETURN_IF_ERROR(ProveMember(store, *full, {}).status());
  CAIRN_ASSIGN_OR_RETURN(const auto view, TarFileSystem::Open(store.fs(), store.Place(*full), *full));
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(*view, view->root()));
  ArchiveRecord whole = *full;
  whole.saved_unix_seconds = weights.saved_unix_seconds;
  CAIRN_ASSIGN_OR_RETURN(const ProvenCopy copy,
                         StoreWeights(store, *step, whole, {}, OptionsOf(store, weights)));
  return Replaced(copy, weights, TarName(*full));
}

// Errors: NotFound, Corrupt if the source is no longer what was archived.
Status CheckSourceIs(FileSystem& fs, const ArchiveRecord& record) {
  if (record.source.empty() || !fs.Stat(record.source).ok())
    return NotFound("its source {} no longer exists", record.source);
  return record.form == Form::kFiles ? CheckTreeIs(fs, record.source, record)
                                     : CheckManifestUnchanged(fs, record.source, ContentOf(record));
}

// Stores the source again if its content is still what was archived. Returns what was read.
Result<std::string> StoreAgain(const Store& store, const ArchiveRecord& record) {
  const Status source = CheckSourceIs(store.fs(), record);
  if (!source.ok() && record.form == Form::kWeights) return StripFullCopy(store, record, source);
  CAIRN_RETURN_IF_ERROR(source);
  const ArchiveRequest request{
      .source = {.path = record.source, .native = record.form != Form::kFiles},
      .weights = record.form == Form::kWeights,
      .links = record.tree && record.tree->followed_links ? Links::kFollow : Links::kKeep};
  CAIRN_ASSIGN_OR_RETURN(const ProvenCopy copy, PutIntoStore(store, request, OptionsOf(store, record), {}));
  return Replaced(copy, record, record.source);
}

}  // namespace

std::vector<CheckedMember> ChooseToScrub(std::vector<CheckedMember> members, double fraction,
                                         uint64_t bytes) {
  uint64_t all = 0;
  for (const CheckedMember& entry : members) all += entry.member.bytes;
  uint64_t budget = bytes > 0 ? bytes : UINT64_MAX;
  if (fraction > 0) budget = std::min(budget, static_cast<uint64_t>(static_cast<double>(all) * fraction));
  std::ranges::stable_sort(members, {}, &CheckedMember::checked_unix_seconds);
  std::vector<CheckedMember> chosen;
  for (CheckedMember& entry : members) {
    if (!chosen.empty() && entry.member.bytes > budget) break;
    budget -= std::min(budget, entry.member.bytes);
    chosen.push_back(std::move(entry));
  }
  return chosen;
}

Result<std::string> RepairMember(const Store& store, const ArchiveMember& member) {
  Result<ArchiveRecord> record = ReadRecord({store, member.tar});
  if (!record.ok()) return record.status();
  const Status parity = RepairFromParity(store, *record);
  if (parity.ok()) return std::string("repaired from its parity");
  const Result<std::string> source = StoreAgain(store, *record);
  if (source.ok() && !record->bundle.empty())
    CAIRN_RETURN_IF_ERROR(DropFromBundle(store, record->bundle, member.tar));
  if (source.ok()) return fmt::format("stored again from {}", *source);
  return Corrupt("{}: cannot be repaired: {}; {}", store.Place(*record).root, parity.message(),
                 source.status().message());
}

Status DropFromBundle(const Store& store, const std::string& name, const std::string& tar) {
  CAIRN_ASSIGN_OR_RETURN(Bundle bundle, ReadBundle(store, name));
  std::erase_if(bundle.members, [&](const ArchiveRecord& member) { return TarName(member) == tar; });
  return bundle.members.empty() ? RemoveMember(store, name) : WriteBundleRecord(store, bundle);
}

}  // namespace cairn
