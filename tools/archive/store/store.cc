// The state of a member follows from its sidecar and from the sizes of its files. Listing a store therefore
// opens no tar, which may lie on tape. Members with tars of their own are described first, then those in
// bundles. If a member is in both places, its own tar counts unless only the bundle's copy is proven. A
// selector is compared with the members in the store, because a run's name may look like an identity.

#include "tools/archive/store/store.h"

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/base/digest.h"
#include "ckpt/base/enum_names.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "store_texts.h"
#include "tools/archive/store/bundle.h"
#include "tools/archive/store/member_title.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

Status WriteWhereOther(FileSystem& fs, const std::string& path, std::string_view text) {
  const Result<std::string> there = ReadSmallFile(fs, path, 1 << 20);
  if (there.ok() && *there == text) return OkStatus();
  return ReplaceSmallFile(fs, path, text);
}

Result<ArchiveRecord> ReadSidecar(const MemberRef& member) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(member.store.fs(), member.sidecar(), kMaxRecordBytes));
  Result<ArchiveRecord> record = DecodeRecord(text);
  if (!record.ok()) return record.status().WithContext(member.tar + ".json");
  if (TarName(*record) != member.tar || !record->bundle.empty())
    return Corrupt("its sidecar belongs to another tar");
  return record;
}

// The tars whose names `parse` accepts. If a tar is missing, its sidecar or its other pieces may be left.
template <typename Parts>
Result<std::vector<std::string>> ListIf(const Store& store, Parts (*parse)(std::string_view)) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, store.List());
  std::set<std::string> tars;
  for (std::string name : names) {
    if (name.ends_with(kRecordSuffix)) name.resize(name.size() - kRecordSuffix.size() + kTarSuffix.size());
    if (const auto piece = ParseTarPieceName(name)) name = piece->tar;
    if (parse(name)) tars.insert(name);
  }
  return std::vector<std::string>(tars.begin(), tars.end());
}

// Sets the state of a member by the size of its tar, which must be the one in the sidecar.
void Judge(ArchiveMember& member, const Result<uint64_t>& there, uint64_t bytes) {
  member.state = MemberState::kDamaged;
  if (!there.ok())
    member.trouble =
        there.status().kind() == StatusKind::kNotFound ? "the tar is missing" : there.status().message();
  else if (*there != bytes)
    member.trouble = fmt::format("the tar has {} bytes, but the sidecar says {}", *there, bytes);
  else
    member.state = MemberState::kVerified;
}

// A tar whose sidecar is missing or cannot be read.
ArchiveMember WithoutRecord(ArchiveMember member, const Status& why) {
  if (why.kind() != StatusKind::kNotFound) {
    member.state = MemberState::kDamaged;
    member.trouble = why.message();
  }
  return member;
}

// If a member is stored twice, its own tar counts if it was proven.
void Merge(std::vector<ArchiveMember>& members, std::vector<ArchiveMember> bundled) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < members.size(); ++i) places[members[i].tar] = i;
  for (ArchiveMember& m : bundled) {
    const auto [place, fresh] = places.emplace(m.tar, members.size());
    if (fresh)
      members.push_back(std::move(m));
    else if (members[place->second].state != MemberState::kVerified && m.state == MemberState::kVerified)
      members[place->second] = std::move(m);
  }
}

// RUN@STEP, RUN~ID@STEP or ID@STEP, split; no step: any.
struct Selector {
  std::string text;
  std::string run;  // empty: any
  std::string id;   // the begin of the run's identity; empty: any
  std::optional<int64_t> step;

  bool Fits(const ArchiveMember& m) const {
    if (text.empty() || text == m.tar) return true;
    return (run.empty() || run == m.run) && (id.empty() || (m.record && m.record->run.starts_with(id))) &&
           (!step || *step == m.step);
  }
};

Result<Selector> ParseSelector(const std::string& text, const std::vector<ArchiveMember>& members) {
  Selector selector{.text = text, .run = text, .step = std::nullopt};
  if (const size_t at = text.rfind('@'); at != text.npos) {
    selector.step = ParseNumber<int64_t>(std::string_view(text).substr(at + 1), 0);
    if (!selector.step)
      return InvalidArgument("'{}' names no archived step; write RUN@STEP, for example gpt@5000", text);
    selector.run = text.substr(0, at);
  }
  if (std::ranges::find(members, selector.run, &ArchiveMember::run) != members.end()) return selector;
  const size_t mark = selector.run.rfind('~');
  const std::string id = mark == text.npos ? selector.run : selector.run.substr(mark + 1);
  if (id.size() < kMinIdDigits || !IsHex(id)) return selector;
  selector.run = mark == text.npos ? "" : selector.run.substr(0, mark);
  selector.id = id;
  return selector;
}

// With their sources if names do not distinguish them.
std::string ListNames(const std::vector<ArchiveMember>& members, const MemberTitles& titles) {
  std::string names;
  for (const ArchiveMember& m : members) {
    const bool source =
        m.record && !m.record->source.empty() && (titles.ambiguous() || m.form == Form::kFiles);
    names += fmt::format("{}{} ({}{})", names.empty() ? "" : ", ", titles.Of(m), m.tar,
                         source ? fmt::format(" from {}", m.record->source) : "");
  }
  return names;
}

// Counts runs by identity, whatever their names; runs of unknown identity, and trees, each of which has its
// own, by name.
size_t CountRuns(const std::vector<ArchiveMember>& members) {
  const auto known = [](const ArchiveMember& m) { return m.record && m.form != Form::kFiles; };
  std::set<std::string> ids, names, others;
  for (const ArchiveMember& m : members) {
    if (known(m)) ids.insert(m.record->run);
    (known(m) ? names : others).insert(m.run);
  }
  return ids.size() + std::ranges::count_if(others, [&](const auto& name) { return !names.contains(name); });
}

}  // namespace

TarPlace Store::Place(const ArchiveRecord& member) const {
  const std::string path = Path(FileOf(member));
  if (member.bundle.empty())
    return {.root = path, .file = path, .form = member.form, .pieces = member.pieces};
  return {JoinPath(path, member.directory), path, member.form, member.bundle_offset, member.tar_bytes, {}};
}

Result<TarPlace> MemberRef::Place(const ArchiveRecord* record) const {
  return record != nullptr ? store.Place(*record) : FindTar(store.fs(), path());
}

std::string_view Name(MemberState state) {
  return NameIn<MemberState::kDamaged>({"stored", "verified", "damaged"}, state);
}

Result<std::vector<std::string>> ListTars(const Store& store) { return ListIf(store, ParseTarName); }
Result<std::vector<std::string>> ListBundles(const Store& store) { return ListIf(store, ParseBundleName); }

ArchiveMember DescribeTar(const MemberRef& ref) {
  const TarNameParts parts = ParseTarName(ref.tar).value_or(TarNameParts{});
  ArchiveMember member{.run = parts.run, .step = parts.step, .form = parts.form, .tar = ref.tar};
  Result<ArchiveRecord> record = ReadSidecar(ref);
  const Result<TarPlace> place = ref.Place(record.ok() ? &*record : nullptr);
  const Result<uint64_t> bytes =
      place.ok() ? StatTar(ref.store.fs(), *place) : Result<uint64_t>(place.status());
  if (bytes.ok()) member.bytes = *bytes;
  if (!record.ok()) {
    if (!place.ok()) member.trouble = place.status().message();  // a piece is missing
    return WithoutRecord(std::move(member), record.status());
  }
  member.record = std::move(record).value();
  Judge(member, bytes, member.record->tar_bytes);
  return member;
}

std::vector<ArchiveMember> DescribeBundle(const Store& store, const std::string& name) {
  const Result<uint64_t> there = StatTar(store.fs(), PlaceOfTar(store.Path(name)));
  Result<Bundle> bundle = ReadBundle(store, name);
  if (!bundle.ok()) {
    const BundleNameParts parts = ParseBundleName(name).value_or(BundleNameParts{});
    ArchiveMember whole{.run = parts.run, .step = parts.last_step, .tar = name};
    if (there.ok()) whole.bytes = *there;
    whole.trouble = "a bundle without its sidecar; cairn archive ls STORE --rebuild makes it again";
    return {WithoutRecord(std::move(whole), bundle.status())};
  }
  std::vector<ArchiveMember> members;
  for (ArchiveRecord& record : bundle->members) {
    ArchiveMember member{.run = record.name,
                         .step = record.step,
                         .form = record.form,
                         .tar = TarName(record),
                         .bytes = there.ok() ? record.tar_bytes : 0};
    member.record = std::move(record);
    Judge(member, there, bundle->tar_bytes);
    if (member.state == MemberState::kVerified && member.record->verified_unix_seconds == 0) {
      member.state = MemberState::kDamaged;
      member.trouble = "it was not whole when the bundle's sidecar was rebuilt";
    }
    members.push_back(std::move(member));
  }
  return members;
}

ArchiveMember DescribeMember(const MemberRef& ref) {
  const ArchiveMember own = DescribeTar(ref);
  std::vector<ArchiveMember> found;
  if (own.record || own.bytes > 0) found.push_back(own);
  const Result<std::vector<std::string>> bundles = ListBundles(ref.store);
  for (size_t i = 0; own.state != MemberState::kVerified && bundles.ok() && i < bundles->size(); ++i) {
    std::vector<ArchiveMember> bundled = DescribeBundle(ref.store, (*bundles)[i]);
    std::erase_if(bundled, [&](const ArchiveMember& m) { return m.tar != ref.tar; });
    Merge(found, std::move(bundled));
  }
  return found.empty() ? own : found.front();
}

Result<std::vector<ArchiveMember>> ListStore(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> tars, ListTars(store));
  std::vector<ArchiveMember> members;
  for (const std::string& tar : tars) members.push_back(DescribeTar({store, tar}));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> bundles, ListBundles(store));
  for (const std::string& name : bundles) Merge(members, DescribeBundle(store, name));
  std::ranges::stable_sort(members, {},
                           [](const ArchiveMember& m) { return std::tie(m.run, m.step, m.form); });
  return members;
}

std::vector<ArchiveMember> OfNewestCommit(std::vector<ArchiveMember> fits) {
  const BranchedStep newest = std::ranges::max(fits, std::less<>(), &ArchiveMember::commit).commit();
  std::erase_if(fits, [&](const ArchiveMember& m) { return m.commit() < newest; });
  std::ranges::stable_sort(fits, {}, &ArchiveMember::form);
  return fits;
}

Result<ArchiveMember> FindMember(const Store& store, const std::string& text) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<ArchiveMember> members, ListStore(store));
  CAIRN_ASSIGN_OR_RETURN(const Selector selector, ParseSelector(text, members));
  if (members.empty()) return NotFound("{}: no archived step in it; is it the store?", store.directory());
  const MemberTitles titles(members);
  std::vector<ArchiveMember> fits;
  for (const ArchiveMember& member : members)
    if (selector.Fits(member)) fits.push_back(member);
  if (fits.empty())
    return NotFound("{}: it has no '{}'; it has {}", store.directory(), text, ListNames(members, titles));
  if (CountRuns(fits) > 1)
    return InvalidArgument("{}: several runs; name one of {}", store.directory(), ListNames(fits, titles));
  fits = OfNewestCommit(std::move(fits));
  const ArchiveMember& best = fits.front();
  if (fits.size() > 1 && fits[1].form == best.form)
    return InvalidArgument("{}: several saves of one step match; name the tar, one of {}", store.directory(),
                           ListNames(fits, titles));
  return best;
}

Result<ArchiveRecord> ReadRecord(const MemberRef& ref) {
  const ArchiveMember member = DescribeMember(ref);
  if (member.record) return *member.record;
  return ReadSidecar(ref);
}

Status WriteRecord(const Store& store, const ArchiveRecord& record) {
  return ReplaceSmallFile(store.fs(), store.Sidecar(TarName(record)), EncodeRecord(record));
}

Status WriteStoreReadme(const Store& store) {
  CAIRN_RETURN_IF_ERROR(WriteWhereOther(store.fs(), store.Path(kUnpackName), kUnpackText));
  return WriteWhereOther(store.fs(), store.Path(kReadmeName), kReadmeText);
}

Result<LockFile> LockStore(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(LockFile lock, LockFile::Open(store.fs(), store.Path(kLockName)));
  CAIRN_ASSIGN_OR_RETURN(const bool ours, lock.TryLock(FileLock::How::kExclusive));
  if (!ours) return StoreIsBusy(store, lock);
  lock.file().Announce();
  return lock;
}

Status StoreIsBusy(const Store& store, const LockFile& lock) {
  return AlreadyExists("{}: another cairn archive is writing into this store{}; wait until it is done",
                       store.directory(), lock.HeldBy());
}

bool IsBusy(const Store& store) {
  const auto file = store.fs().OpenLock(store.Path(kLockName), FileLock::Missing::kError);
  return file.ok() && file->IsAnnounced();
}

}  // namespace cairn
