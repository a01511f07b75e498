// One step that the ranks of a job save on their nodes (local_place.h), with parity over the ranks.
//
//   write    every rank writes its shard into its own directory
//   gather   rank 0 gets every rank's part, or the failure of one, and makes the seal; every rank gets it
//   share    each directory gets the seal and the shards that only rank 0 has; each rank writes its parity,
//            which it computes from what the others offer: memory, rather than their files
//   publish  once all ranks have agreed that everything is written
//
// A failure of any rank fails the save on all of them; a rank that has failed still takes part.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ckpt/job/job_save.h"
#include "ckpt/job/local_place.h"
#include "ckpt/job/peer_files.h"

namespace cairn {

class LocalSave {
 public:
  // `ranks`: of the thread that saves. All ranks have the same nonce. Does nothing yet.
  LocalSave(FileSystem& fs, const LocalPlace& place, JobRanks& ranks, PeerFiles& peers, StepIdentity identity,
            const std::string& nonce);

  const std::string& partial() const { return committer_.partial(); }
  const std::string& step_dir() const { return committer_.step_dir(); }
  Status MakePartial() { return committer_.MakePartial(); }

  struct Offers {
    std::map<std::string, PeerFiles::Offer> contents;  // that the sealer reads from other ranks
    bool sealer_reads = false;                         // it does, the same on all ranks
    std::map<std::string, PeerFiles::Offer> files;     // this rank's shard, and rank 0's further ones
    // For the parity: a file of this size that nobody needs. Empty, or its result is empty: none.
    std::function<std::string(uint64_t bytes)> spare;
  };
  // Collective. `part`: this rank's, or why it has none. `seal`: rank 0 calls it; it may add shards to the
  // directory, which rank 0 offers. After a failure nothing is left of the step.
  Status Commit(const Result<SavePart>& part, Offers offers, const JobSave::Sealer& seal);

 private:
  Result<StepSeal> Seal(const Result<SavePart>& part, Offers& offers, const JobSave::Sealer& seal);
  Status WriteShare(const Result<StepSeal>& seal, Offers& offers);
  Status CopyFurtherShards(const Manifest& manifest);
  Status WriteParityOf(const Manifest& manifest, const std::function<std::string(uint64_t bytes)>& spare);

  FileSystem& fs_;
  const LocalPlace& place_;
  JobRanks& ranks_;
  RankSaveMessages messages_{ranks_};
  PeerFiles& peers_;
  const StepIdentity identity_;
  Committer committer_;
};

// Steps of a local directory that are superseded, or older than the newest healthy one and not among the
// newest `keep_last` healthy ones. Bounds the node's memory; the run directory keeps more steps. `steps` is
// ascending. Pure.
std::vector<int64_t> LocalStepsToRetire(const std::vector<StepFacts>& steps, int64_t keep_last);

// On the leader of a directory: removes these steps, and those that were set aside. `in_use`: one that is
// still read. `left` is called for what could not be deleted.
Status RetireLocalSteps(FileSystem& fs, const LocalPlace& place, const std::string& nonce,
                        const std::function<bool(int64_t step)>& in_use, const Complain& left);

}  // namespace cairn
