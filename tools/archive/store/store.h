// A store: a directory of archived steps (record.h), a README.txt for people, and a lock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/run/run_dir.h"
#include "tools/archive/tar/record.h"

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
  std::string tar;  // its name: that of its file in the store, or that it had before it went into a bundle
  uint64_t bytes = 0;
  MemberState state = MemberState::kStored;
  std::string trouble;                  // what is damaged
  std::optional<ArchiveRecord> record;  // where the ledger has a readable one

  // The file in the store that it lies in.
  const std::string& file() const { return record && !record->bundle.empty() ? record->bundle : tar; }
};

// All members, by run, then step. Reads no tar, so that nothing is recalled from tape. A bundle without a
// readable sidecar stands for the members that nobody knows of.
// Errors: NotFound where `store` is no directory.
Result<std::vector<ArchiveMember>> ListStore(FileSystem& fs, const std::string& store);

// The names of all tars of one member, those included of which only the sidecar is left.
Result<std::vector<std::string>> ListTars(FileSystem& fs, const std::string& store);
// A member, by the name of its tar and that tar's sidecar, or that of the bundle that it lies in.
ArchiveMember DescribeMember(FileSystem& fs, const std::string& store, const std::string& tar);

// The member that `selector` names: RUN@STEP, RUN (its newest step), a tar's file name, or empty for the
// newest step of a store that holds one run. For RUN also RUN~ID or ID, where ID is the begin of the run's
// identity, for there may be several of one name. Of several forms of a step the fullest. Errors: NotFound;
// InvalidArgument listing the members where several fit.
Result<ArchiveMember> FindMember(FileSystem& fs, const std::string& store, const std::string& selector);

// "STORE:SELECTOR"; only STORE, with an empty selector, where `argument` has no colon or is a path that
// exists.
struct MemberName {
  std::string store;
  std::string selector;
};
MemberName SplitMemberName(FileSystem& fs, const std::string& argument);

// The members of a bundle, whether they have tars of their own besides or not; of one without a readable
// sidecar itself.
std::vector<ArchiveMember> DescribeBundle(FileSystem& fs, const std::string& store, const std::string& name);
// What the sidecar of a member's own tar says. Errors: NotFound, Corrupt naming it.
ArchiveMember DescribeTar(FileSystem& fs, const std::string& store, const std::string& tar);

// The record of a member, from its own sidecar or its bundle's. Errors: NotFound, Corrupt naming it.
Result<ArchiveRecord> ReadRecord(FileSystem& fs, const std::string& store, const std::string& tar);

// Writes README.txt and unpack.py where they are missing or of another version.
Status WriteStoreReadme(FileSystem& fs, const std::string& store);

// Held while something is written into the store. Errors: AlreadyExists where another process does.
Result<RunLock> LockStore(const std::string& store);

}  // namespace cairn
