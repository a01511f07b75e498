// Which run a directory is, and which directory owns that run.
//
// A run is its identity: 32 random hex digits, in every manifest that its training writes. A name or a path
// is not an identity: `mv` changes them and `cp -r` copies everything in them, steps and identities too. So
// the run's directory says in RUN/.run which directory it was when it took its identity, by inode and birth
// time, which a rename keeps and a copy does not. A directory that is not the one named in its file, or that
// is on a clone of its file system, is a copy: it becomes a new run before anything is written into it.
// FORMAT.md, "Run identity".
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/directory_facts.h"

namespace cairn {

enum class Ownership {
  kNone,     // there is no RUN/.run: a new directory, one of an older Cairn, or a reshaped one
  kOwned,    // the directory that took the identity
  kRenamed,  // the same directory under another path
  kCopied,   // another directory: the identity is that of the one it was copied from
};

struct RunIdentity {
  std::string run;  // 32 hex digits; empty with kNone
  Ownership ownership = Ownership::kNone;
  std::string owner;  // the path in RUN/.run

  // Whether steps that are written into the directory belong to `run`.
  bool owns() const { return ownership == Ownership::kOwned || ownership == Ownership::kRenamed; }
};

// The run that RUN/.run names, and the one that its directory was copied from, if it is a copy.
std::vector<std::string> RunsNamedAt(FileSystem& fs, const std::string& run_dir);
// Reads RUN/.run. Errors: Corrupt if it is not an identity, naming the file; those of the disk.
Result<RunIdentity> IdentifyRun(FileSystem& fs, const std::string& run_dir);

// The identity under which steps are written into `run_dir` from now on, durable before it returns: that of
// RUN/.run if this directory owns it, else a new one. Call with the run's lock held. `before` says what the
// directory was, for a message.
struct OwnedRun {
  std::string run;
  RunIdentity before;
};
Result<OwnedRun> OwnRun(FileSystem& fs, const std::string& run_dir);

// 32 hex digits of the system's random source.
std::string NewRunId();
bool IsRunId(std::string_view text);

}  // namespace cairn
