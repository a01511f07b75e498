// Stores one source in one form, unless the store has it already. Weights are stripped first. A source is
// removed only after a proof.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ckpt/run/deletion.h"
#include "tools/archive/store/source.h"
#include "tools/archive/store/store_member.h"
#include "tools/archive/store/tree.h"

namespace cairn {

// The proof that the step or tree at `source` may be removed. Errors: why it stays; InvalidArgument if that
// is as it should be, as for the newest step of a run.
using ProofFinder = std::function<Result<std::shared_ptr<const DeletionProof>>(const std::string& source)>;

struct ArchiveRequest {
  FoundStep source;
  bool weights = false;        // of a native step only its fp16 weights
  bool delete_source = false;  // once everything that was requested is proven
  bool delete_newest = false;  // also if that is the newest healthy step of its run
  // Called with the tar of a copy that is stored already, before its source is removed: adds the claim
  // (claims.h).
  std::function<Status(const std::string& tar)> stored = {};
  // Finds the proof that a source may go (removal_proof.h). Without it nothing is removed, but for steps of
  // Cairn with `delete_newest`.
  ProofFinder find_proof = {};
  Links links = Links::kRefuse;  // of a tree
};

struct ArchiveOutcome {
  ArchiveRecord record;
  bool stored = false;           // false: it was already stored
  std::string passed_over = {};  // why nothing was done: it is being written
  bool deleted = false;
  std::string removed = {};  // the directory that was deleted, absolute and without links
  Status kept = {};          // why the source was not deleted although that was requested
  bool newest = false;       // `kept`: as it should be, for example as the newest step of its run
  double seconds = 0;
};

// What Archive() would do; writes nothing. `outcome.record` is the stored record, or the known part of the
// new one.
Result<ArchiveOutcome> LookUp(const Store& store, const ArchiveRequest& request);

// Requires the store's lock. Errors: those of StoreStep and StoreTree; Corrupt if weights do not fit fp16;
// InvalidArgument if weights are asked of a tree.
Result<ArchiveOutcome> Archive(const Store& store, const ArchiveRequest& request, const StoreOptions& options,
                               const ByteProgress& progress);

// Stores the source in the form of the request, even if the store has it. Errors: Archive()'s.
Result<ProvenCopy> PutIntoStore(const Store& store, const ArchiveRequest& request,
                                const StoreOptions& options, const ByteProgress& progress);

// Stores the fp16 weights of a step. `whole`: the record of the step itself, even if its files are read from
// another place. Errors: Corrupt if they do not fit fp16; those of StoreStep.
Result<ProvenCopy> StoreWeights(const Store& store, StepReader& step, const ArchiveRecord& whole,
                                const ByteProgress& progress, const StoreOptions& options);

}  // namespace cairn
