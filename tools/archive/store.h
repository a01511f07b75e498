// A store: a directory of archived steps (record.h), a README.txt for people, and a lock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/run_dir.h"
#include "tools/archive/record.h"

namespace cairn {

enum class MemberState {
  kStored,    // the tar is there, no ledger entry: nobody proved it
  kVerified,  // proven after it was written
  kDamaged,   // the ledger and the tar contradict each other
};
std::string_view Name(MemberState state);

struct ArchiveMember {
  std::string run;  // RUN of RUN@STEP
  int64_t step = 0;
  Form form = Form::kFull;
  std::string tar;  // file name in the store
  uint64_t bytes = 0;
  MemberState state = MemberState::kStored;
  std::string trouble;                  // what is damaged
  std::optional<ArchiveRecord> record;  // where the ledger has a readable one
};

// All members, by run, then step. Reads no tar, so that nothing is recalled from tape.
// Errors: NotFound where `store` is no directory.
Result<std::vector<ArchiveMember>> ListStore(FileSystem& fs, const std::string& store);

// The names of all tars, those included of which only the sidecar is left.
Result<std::vector<std::string>> ListTars(FileSystem& fs, const std::string& store);
// One of them, by its sidecar.
ArchiveMember DescribeMember(FileSystem& fs, const std::string& store, const std::string& tar);

// The member that `selector` names: RUN@STEP, RUN (its newest step), a tar's file name, or empty for the
// newest step of a store that holds one run. Of several forms of a step the fullest. Errors: NotFound;
// InvalidArgument listing the members where several fit.
Result<ArchiveMember> FindMember(FileSystem& fs, const std::string& store, const std::string& selector);

// "STORE:SELECTOR"; only STORE, with an empty selector, where `argument` has no colon or is a path that
// exists.
struct MemberName {
  std::string store;
  std::string selector;
};
MemberName SplitMemberName(FileSystem& fs, const std::string& argument);

// The sidecar of a tar. Errors: NotFound, Corrupt naming it.
Result<ArchiveRecord> ReadRecord(FileSystem& fs, const std::string& store, const std::string& tar);

// Writes README.txt and unpack.py where they are missing or of another version.
Status WriteStoreReadme(FileSystem& fs, const std::string& store);

// Held while something is written into the store. Errors: AlreadyExists where another process does.
Result<RunLock> LockStore(const std::string& store);

}  // namespace cairn
