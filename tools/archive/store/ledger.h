// The ledger: what sidecars do not record, in SQLite: when a member was last checked and with what result,
// and which sources wait.
//
// It may be deleted: members then count as checked when they were stored, and the next run notes the sources
// again. One that is damaged or of another version is set aside and made again. WAL mode, so that a listing
// never waits for a run.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
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

struct CheckedMember {
  ArchiveMember member;
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

  // The checks of these members, each in its place, as far as the bytes are still those that were read.
  Result<std::vector<Scrub>> Scrubs(const std::vector<ArchiveMember>& members);
  Status SetScrub(const ArchiveRecord& record, const Scrub& scrub);

  Result<std::vector<SeenSource>> Sources();
  Status NoteSource(const SeenSource& source);
  Status ForgetSource(const std::string& path);

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  Ledger(Store store, std::unique_ptr<sqlite3, Close> db) : store_(std::move(store)), db_(std::move(db)) {}
  Status Prepare();
  Status Execute(const char* sql);

  Store store_;
  std::unique_ptr<sqlite3, Close> db_;
};

// All members with their checks; without those if the ledger cannot be opened. Errors: ListStore's.
Result<std::vector<CheckedMember>> ListChecked(const Store& store);

// The state of a member as `archive ls` prints it: that of the store, or "scratch gone" if the copy is proven
// and its source no longer exists.
std::string StateText(FileSystem& fs, const CheckedMember& member);

// ListStore without the members that a later check found damaged: those that count as stored.
Result<std::vector<ArchiveMember>> ListSound(const Store& store);
// The first proven one among them that matches; nullopt if there is none, or no store.
Result<std::optional<ArchiveRecord>> FindSound(const Store& store,
                                               const std::function<bool(const ArchiveRecord&)>& fits);

// The member of the store with the same manifest, if it was proven and not found damaged since.
Result<std::optional<ArchiveRecord>> FindStored(const Store& store, const ArchiveRecord& wanted);

}  // namespace cairn
