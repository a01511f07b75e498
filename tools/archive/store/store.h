// A store: a directory of archived steps (record.h), a README.txt for people, and a lock.
//
// Store and MemberRef are passed instead of paths: no other code joins the path of a store and a name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/lock_file.h"
#include "ckpt/run/branch.h"
#include "tools/archive/tar/tar_index.h"

namespace cairn {

inline constexpr std::string_view kReadmeName = "README.txt";
inline constexpr std::string_view kUnpackName = "unpack.py";
inline constexpr std::string_view kLedgerName = "ledger.sqlite";  // ledger.h
inline constexpr std::string_view kStatusName = "status.json";  // of the last run, unless the policy names it
inline constexpr std::string_view kTeamName = ".team";          // team.h
inline constexpr std::string_view kTeamClaimsName = ".claims";  // a directory; team.h

class Store {
 public:
  Store(FileSystem& fs, std::string directory) : fs_(&fs), directory_(std::move(directory)) {}

  FileSystem& fs() const { return *fs_; }
  const std::string& directory() const { return directory_; }

  // The path of a tar, a bundle, a piece of a tar, or one of the names above.
  std::string Path(std::string_view name) const { return JoinPath(directory_, name); }
  // The paths of the sidecar and of the parity of a tar or a bundle of this name.
  std::string Sidecar(std::string_view tar) const { return Path(tar) + ".json"; }
  std::string Parity(std::string_view tar) const { return Path(tar) + std::string(kParitySuffix); }
  // The place of a member's entries: a tar of its own, or its bundle.
  TarPlace Place(const ArchiveRecord& member) const;

  bool IsThere() const { return fs_->Stat(directory_).ok(); }
  // All names in it, sorted.
  Result<std::vector<std::string>> List() const { return fs_->List(directory_); }
  // Makes renames and removals in the store durable.
  Status Sync() const { return fs_->SyncDir(directory_); }

 private:
  FileSystem* fs_;
  std::string directory_;
};

// A member of a store by its name: the name of its own tar, which it keeps in a bundle.
struct MemberRef {
  Store store;
  std::string tar;

  // Its own tar, and that one's sidecar.
  std::string path() const { return store.Path(tar); }
  std::string sidecar() const { return store.Sidecar(tar); }
  // The place of its bytes: by its record, or without one by the names of its tar's files. Errors: FindTar's.
  Result<TarPlace> Place(const ArchiveRecord* record) const;
};

enum class MemberState {
  kStored,    // the tar has no sidecar: it was never proven
  kVerified,  // proven after it was written
  kDamaged,   // the sidecar and the tar contradict each other
};
std::string_view Name(MemberState state);

struct ArchiveMember {
  std::string run;  // RUN of RUN@STEP
  int64_t step = 0;
  Form form = Form::kFull;
  std::string tar;  // its name: its file in the store, or the file that it had before it was bundled
  uint64_t bytes = 0;
  MemberState state = MemberState::kStored;
  std::string trouble = {};                  // the damage
  std::optional<ArchiveRecord> record = {};  // if the sidecar can be read

  // The order of its commit among those of its run; without a readable record, only by the number.
  BranchedStep commit() const {
    return record ? BranchedStep{step, record->run, record->descent} : BranchedStep{.step = step};
  }
  // The file in the store that holds it.
  const std::string& file() const { return record && !record->bundle.empty() ? record->bundle : tar; }
};

// All members, by run, then step. Reads no tar, so that nothing is recalled from tape. A bundle without a
// readable sidecar is listed in place of its members, which are unknown. Errors: NotFound if the store is not
// a directory.
Result<std::vector<ArchiveMember>> ListStore(const Store& store);

// The names of all tars of one member, and of all bundles, including those of which only the sidecar or other
// pieces are left.
Result<std::vector<std::string>> ListTars(const Store& store);
Result<std::vector<std::string>> ListBundles(const Store& store);
// A member, by the sidecar of its own tar or of its bundle.
ArchiveMember DescribeMember(const MemberRef& member);

// The member that `selector` names: RUN@STEP, RUN (its newest step), a tar's file name, or empty for the
// newest step of a store that holds one run. RUN may also be RUN~ID or ID, where ID is the beginning of the
// run's identity, because several runs may have one name. Of several forms of a step it is the fullest.
// Errors: NotFound; InvalidArgument listing the members if several match.
Result<ArchiveMember> FindMember(const Store& store, const std::string& selector);

// Keeps those of the newest commit among the members that match a selector, all of one run; the fullest form
// comes first. The selector means the first, unless the second has the same form.
std::vector<ArchiveMember> OfNewestCommit(std::vector<ArchiveMember> fits);

// "STORE:SELECTOR", or a store alone (SplitMemberName).
struct MemberName {
  Store store;
  std::string selector;
};

// The members of a bundle, even those that also have their own tars; a bundle without a readable sidecar is
// listed itself.
std::vector<ArchiveMember> DescribeBundle(const Store& store, const std::string& name);
// A member, only by the sidecar of its own tar.
ArchiveMember DescribeTar(const MemberRef& member);

// The record of a member, from its own sidecar or its bundle's. Errors: NotFound, Corrupt naming it.
Result<ArchiveRecord> ReadRecord(const MemberRef& member);

// Puts a member's own sidecar in its place, whole and synced.
Status WriteRecord(const Store& store, const ArchiveRecord& record);

// Writes README.txt and unpack.py if they are missing or of another version.
Status WriteStoreReadme(const Store& store);

// The lock of a process that writes to the store. Errors: StoreIsBusy if another process has it.
Result<LockFile> LockStore(const Store& store);
// AlreadyExists, with the holder as far as the store's lock names it, and the remedy.
Status StoreIsBusy(const Store& store, const LockFile& lock);
// True if a process writes to the store. Takes no lock, not even for a moment, because that would refuse a
// writer.
bool IsBusy(const Store& store);

}  // namespace cairn
