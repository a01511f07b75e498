// The ledger: the members of a store and the sources that wait, in SQLite, so that listing a store recalls
// nothing from tape.
//
// It is a cache. The truth lies in the sidecars (record.h); the ledger is made from them if it is missing,
// damaged or of another version, and follows them by names, sizes and times. Two facts are only in the
// ledger: when a member was last checked and with what result, and which sources are not stored yet. WAL
// mode, so that a listing never waits for a run.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tools/archive/store/store.h"

struct sqlite3;

namespace cairn {

// The last check of a member's bytes.
struct Scrub {
  int64_t unix_seconds = 0;  // 0: never since it was stored
  std::string trouble;       // empty: it was whole
};

// A source that a run has seen and that is not stored yet.
struct SeenSource {
  std::string path;
  std::string run;
  int64_t step = 0;
  uint64_t bytes = 0;
};

struct LedgerMember {
  ArchiveMember member;  // its record without the list of files
  Scrub scrub;

  // When its bytes were last read; 0: never.
  int64_t checked_unix_seconds() const {
    return std::max(scrub.unix_seconds, member.record ? member.record->verified_unix_seconds : 0);
  }
};

class Ledger {
 public:
  // Opens the store's ledger.sqlite, or makes it. One that cannot be read is set aside (".damaged") and made
  // again. Errors: those of the disk; a store that cannot be written to has no ledger to open.
  static Result<Ledger> Open(const Store& store);
  Ledger(Ledger&&) noexcept = default;
  Ledger& operator=(Ledger&&) noexcept = default;

  // Follows the store: reads the sidecars that are new or changed, and forgets what is gone. `all`: reads
  // every sidecar again.
  Status Sync(bool all = false);

  // By run, step, form.
  Result<std::vector<LedgerMember>> Members();
  Result<std::vector<SeenSource>> Sources();

  Status SetScrub(const std::string& tar, const Scrub& scrub);
  Status NoteSource(const SeenSource& source);
  Status ForgetSource(const std::string& path);

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  Ledger(Store store, std::unique_ptr<sqlite3, Close> db) : store_(std::move(store)), db_(std::move(db)) {}
  Status Execute(const std::string& sql);
  Status Follow(bool all);
  Status FollowBundles(bool all, const std::set<std::string>& own, std::map<std::string, std::string>& known);
  Result<bool> KeepsScrub(const ArchiveMember& member, const std::string& stamp);
  Status Put(const ArchiveMember& member, const std::string& stamp);

  Store store_;
  std::unique_ptr<sqlite3, Close> db_;
};

// The state of a member as `archive ls` prints it: that of the store, or "scratch gone" if the copy is proven
// and its source is no longer there.
std::string StateText(FileSystem& fs, const LedgerMember& member);

// ListStore without the members that a later check found damaged: those that count as stored.
Result<std::vector<ArchiveMember>> ListSound(const Store& store);
// The first proven one of those that fits; nullopt if there is none, or no store.
Result<std::optional<ArchiveRecord>> FindSound(const Store& store,
                                               const std::function<bool(const ArchiveRecord&)>& fits);

// The member of the store with the same manifest, if it was proven and not found damaged since.
Result<std::optional<ArchiveRecord>> FindStored(const Store& store, const ArchiveRecord& wanted);

// The members by the ledger, or by the store itself if it cannot be written to.
Result<std::vector<LedgerMember>> ListByLedger(const Store& store, bool rebuild);

}  // namespace cairn
