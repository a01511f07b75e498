// Stores one step or tree and proves it; only a proof allows its source to be removed (delete.h).
//
// Order of durability: the tar under a temporary name (written, synced, closed), the rename, the store's
// directory. If the tar is in pieces (tar_pieces.h), all are closed before the first is renamed, and that
// rename is durable before the next. Then the tar is read back past the page cache, and every byte compared
// with the digests that the step was committed with; then its parity and its sidecar are written; then, if
// asked for, the source is removed. A run that is killed anywhere leaves the source, or a proven copy of it,
// or both.
#pragma once

#include <optional>
#include <string>

#include "tools/archive/store/tree.h"
#include "tools/archive/store/verify.h"

namespace cairn {

struct StoreOptions {
  bool pack = false;           // store files packed (packed_file.h)
  double parity = 0;           // the part of the tar that parity repairs; 0: no parity (tar_parity.h)
  uint64_t max_tar_bytes = 0;  // of a file; a larger tar is written in pieces (tar_pieces.h); 0: no limit
  std::vector<std::string> claims = {};  // who asks for it (claims.h)
};

// A copy that this process has read back and found whole. Only ProveMember and StoreStep make one.
class ProvenCopy {
 public:
  const ArchiveRecord& record() const { return record_; }

 private:
  friend Result<ProvenCopy> ProveMember(const Store&, const ArchiveRecord&, const ByteProgress&);
  explicit ProvenCopy(ArchiveRecord record) : record_(std::move(record)) {}
  ArchiveRecord record_;
};

// Sizes of the tar's entries, and of the whole tar, at most.
std::vector<uint64_t> TarEntries(const Manifest& manifest);
uint64_t TarBytesAtMost(const Manifest& manifest);

// Writes the step's tar and proves it. Requires the store's lock. A failure leaves no trace in the store.
// Errors: Corrupt, NotFound (the source is damaged, changed or vanished meanwhile); NoSpace, IoError (the
// store). `record`: of weights that were stripped from another step; nullopt: DescribeSource(step).
Result<ProvenCopy> StoreStep(const Store& store, const StepReader& step, const ByteProgress& progress,
                             const StoreOptions& options = {},
                             std::optional<ArchiveRecord> record = std::nullopt);
// The same for any tree of files. The files of a sealed tree are compared with its seal (tools/seal) while
// they are read. Other trees have no digests from when they were written; the proof is that the store holds
// what was read, and that nothing changed meanwhile. Errors: also those of ListTree.
Result<ProvenCopy> StoreTree(const Store& store, const std::string& directory, const ByteProgress& progress,
                             const StoreOptions& options = {}, Links links = Links::kRefuse);

// Reads an archived step back. Errors: Corrupt with the first problem.
Result<ProvenCopy> ProveMember(const Store& store, const ArchiveRecord& record, const ByteProgress& progress);

}  // namespace cairn
