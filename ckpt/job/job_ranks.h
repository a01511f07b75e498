// The ranks of a job, and small messages between them: commits, votes, reports. A job exchanges them as its
// launcher allows: over MPI or a TCP store (runtime/control/control_plane.h).
//
// All operations are collective: every rank calls the same ones in the same order, one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

class JobRanks {
 public:
  virtual ~JobRanks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // As messages name it.
  virtual std::string NameOf(int rank) const = 0;

  // On rank 0 all blobs by rank; elsewhere an empty vector, as soon as the blob has left. Errors: Aborted if
  // a rank does not take part in time.
  virtual Result<std::vector<std::string>> GatherToRoot(std::string blob, std::string_view what) = 0;
  // Rank 0's blob. Rank 0 returns once it has left. Errors: likewise.
  virtual Result<std::string> BroadcastFromRoot(std::string blob, std::string_view what) = 0;
};

// A Status, or a payload, on its way between ranks.
std::string EncodeOutcome(const Status& status, std::string_view payload = {});
// The payload, or the status that was sent. Errors: Corrupt if it is neither.
Result<std::string> DecodeOutcome(std::string_view blob);

// True for failures that another step, or a rebuilt one, may not have: damage, not a request that no step can
// meet.
bool IsDamage(StatusKind kind);

// OK on all ranks where `mine` is on all, else on all of them the failure of one rank, named; one that is not
// damage if there is such.
Status Agree(JobRanks& ranks, const Status& mine, std::string_view what);

// On every rank what `make` returns on rank 0, the only rank that calls it; its failure too.
Result<std::string> FromRoot(JobRanks& ranks, std::string_view what,
                             const std::function<Result<std::string>()>& make);

// Every rank's blob, on every rank.
Result<std::vector<std::string>> ShareAll(JobRanks& ranks, std::string blob, std::string_view what);

}  // namespace cairn
