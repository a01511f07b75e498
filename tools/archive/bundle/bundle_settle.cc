// A killed run leaves a member in two files. One of them may go if a bundle holds all of its members, a
// larger bundle if it is one itself. Then the bundle's copies are read from the disk, and only if all are
// whole the other file goes. A damaged copy is dropped from the bundle if the other one is whole; if both
// are damaged, both files are left alone. So is a bundle on tape: it proves nothing until it is back.

#include "tools/archive/bundle/bundle_settle.h"

#include <algorithm>
#include <ctime>

#include "ckpt/model/layout.h"
#include "tools/archive/store/removal.h"
#include "tools/archive/store/store_member.h"
#include "tools/archive/tar/recall.h"

namespace cairn {
namespace {

// A file of the store and the members that it holds.
struct Home {
  std::string file;
  bool bundle = false;
  std::vector<ArchiveRecord> members;  // those that were proven
  bool whole = true;                   // it has no others
};

Result<std::vector<Home>> HomesOf(const Store& store) {
  std::vector<Home> homes;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> tars, ListTars(store));
  for (const std::string& tar : tars)
    if (const ArchiveMember m = DescribeTar({store, tar}); m.state == MemberState::kVerified)
      homes.push_back({tar, false, {*m.record}});
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> bundles, ListBundles(store));
  for (const std::string& name : bundles) {
    Home home{name, true, {}};
    for (const ArchiveMember& m : DescribeBundle(store, name)) {
      if (m.state == MemberState::kVerified) home.members.push_back(*m.record);
      home.whole = home.whole && m.state == MemberState::kVerified;
    }
    if (!home.members.empty()) homes.push_back(std::move(home));
  }
  return homes;
}

// Where all that `home` holds lies in `other` too, and `other` is what is to stay.
bool Supersedes(const Home& other, const Home& home) {
  if (!other.bundle || other.file == home.file || !home.whole) return false;
  if (home.bundle && home.members.size() >= other.members.size()) return false;
  return std::ranges::all_of(home.members, [&](const ArchiveRecord& member) {
    return std::ranges::any_of(other.members,
                               [&](const ArchiveRecord& m) { return TarName(m) == TarName(member); });
  });
}

// Sidecars and parity of bundles that never got their tar, where every member is proven elsewhere.
Status RemoveUnborn(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, store.List());
  std::set<std::string> unborn;
  for (const std::string& name : names) {
    const std::string tar = name.substr(0, name.rfind('.'));
    if ((name.ends_with(kRecordSuffix) || name.ends_with(kParitySuffix)) && ParseBundleName(tar) &&
        store.fs().Stat(store.Path(tar)).status().kind() == StatusKind::kNotFound)
      unborn.insert(tar);
  }
  if (unborn.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore(store));
  for (const ArchiveMember& m : members)
    if (m.state != MemberState::kVerified) unborn.erase(m.file());
  for (const std::string& name : unborn)
    for (const std::string& path : {store.Sidecar(name), store.Parity(name)})
      CAIRN_RETURN_IF_ERROR(RemoveIfThere(store.fs(), path));
  return store.Sync();
}

// `home` goes, or `other` gives up what is damaged in it.
Status Settle(const Store& store, const Home& home, const Home& other, SettledBundles& settled) {
  // Neither proves nor refutes anything; both stay until it is back from tape.
  if (IsStub(store.Path(other.file))) {
    settled.files.insert({home.file, other.file});
    return OkStatus();
  }
  bool whole = true;
  for (const ArchiveRecord& member : home.members) {
    const auto same = std::ranges::find(other.members, TarName(member), TarName);
    const Status proof = ProveMember(store, *same, {}).status();
    if (proof.ok()) continue;
    whole = false;
    settled.problems.push_back(proof.message());
    if (ProveMember(store, member, {}).ok())
      CAIRN_RETURN_IF_ERROR(DropFromBundle(store, other.file, TarName(member)));
    else
      settled.files.insert({home.file, other.file});
  }
  if (!whole) return OkStatus();
  settled.files.insert(home.file);
  return RemoveMember(store, home.file);
}

}  // namespace

Result<SettledBundles> SettleBundles(const Store& store) {
  SettledBundles settled;
  CAIRN_RETURN_IF_ERROR(RemoveUnborn(store));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Home> homes, HomesOf(store));
  for (const Home& home : homes) {
    const auto other = std::ranges::find_if(homes, [&](const Home& candidate) {
      return !settled.files.contains(candidate.file) && Supersedes(candidate, home);
    });
    if (other != homes.end()) CAIRN_RETURN_IF_ERROR(Settle(store, home, *other, settled));
  }
  return settled;
}

Result<std::vector<std::string>> RebuildBundle(const Store& store, const std::string& name) {
  FileSystem& fs = store.fs();
  const std::string path = store.Path(name);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  CAIRN_ASSIGN_OR_RETURN(const TarEntry entry, ReadLastEntry(fs, path));
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
    member.claims.clear();  // those in the tar are as old as the tar: who claimed it since is not known
  }
  if (problems.size() == bundle->members.size()) return Corrupt("{}: none of its members is whole", path);
  if (const auto there = fs.Stat(store.Parity(name)); there.ok())
    bundle->parity = {name + std::string(kParitySuffix), there->bytes};
  CAIRN_RETURN_IF_ERROR(WriteBundleRecord(store, *bundle));
  return problems;
}

Status DropFromBundle(const Store& store, const std::string& name, const std::string& tar) {
  CAIRN_ASSIGN_OR_RETURN(Bundle bundle, ReadBundle(store, name));
  std::erase_if(bundle.members, [&](const ArchiveRecord& member) { return TarName(member) == tar; });
  return bundle.members.empty() ? RemoveMember(store, name) : WriteBundleRecord(store, bundle);
}

}  // namespace cairn
