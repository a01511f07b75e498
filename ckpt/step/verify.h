// Checks the bytes of a step against what was committed, without trusting HDF5 with them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/step/shard_plan.h"
#include "ckpt/step/step_reader.h"

namespace cairn {

struct Problem {
  std::string file;                // path
  std::optional<uint64_t> offset;  // bytes from the start of the file; nullopt: the file as a whole
  std::string tensor;              // display name; empty if it is not in a tensor's data
  std::string what;
};
// "FILE at byte N: tensor T: what"; "FILE: what"
std::string ToString(const Problem& problem);

struct VerifyReport {
  std::vector<Problem> problems;
  uint64_t bytes_checked = 0;
  // The first failure of the system, not of the files: too many open files, no permission. Some bytes were
  // then not checked.
  Status trouble = {};

  // Adds a failed read at `offset` of `file`, as a problem or as trouble.
  void Add(const Status& failed, std::string file, std::optional<uint64_t> offset = {},
           std::string tensor = {});
  // Adds the problems and trouble of `other`.
  void Join(VerifyReport other);
  bool good() const { return problems.empty() && trouble.ok(); }
  // OK, Corrupt with the first problem, or the trouble.
  Status status() const;
};

// A file of a step that is to be verified, where it is now.
struct ShardToVerify {
  std::string directory;
  const ManifestFile& file;
  const StepCatalog& catalog;  // with the file's pieces; the index has none
  StepIdentity identity;
};
// Adds to `report` that a file of a step is missing or has another size than its manifest says. False then.
bool CheckSize(FileSystem& fs, const std::string& directory, const ManifestFile& file, VerifyReport& report);
// Checks every chunk of every piece against its digest, everything else against the manifest's. `sink`, if
// there is one, gets all bytes of the file in order; its failure ends the check. If `may_map` is false, those
// are the bytes that were checked, even if someone changes the file meanwhile.
Status VerifyShard(FileSystem& fs, const ShardToVerify& shard, VerifyReport& report,
                   const std::function<Status(std::span<const std::byte>)>& sink = {}, bool may_map = true);

// Verifies a shard that was just written. Errors: Corrupt with the first problem; those of the disk.
Status ReadBackShard(FileSystem& fs, const std::string& directory, const ShardReceipt& receipt,
                     const StepIdentity& identity);

// Checks every byte of every file of a step. `progress` gets the bytes done, by one thread at a time; may be
// empty. A missing or damaged file is a problem of the report, not an error. With several `jobs`, `fs` is
// used by as many threads at once.
VerifyReport VerifyHash(FileSystem& fs, const StepReader& step,
                        const std::function<void(uint64_t)>& progress = {}, int jobs = 1);

// Checks that every element of every tensor is covered exactly once. (Sizes and shapes are checked by
// StepReader::Open.)
VerifyReport VerifyStructure(const StepReader& step);

}  // namespace cairn
