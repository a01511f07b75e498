// The first level of saves: node-local directories, with parity over the ranks.
//
// Every rank writes its shard into its own directory, computes its share of the parity of its group from the
// others' snapshots, and publishes the step there; the snapshot's memory is then free. If a save is also
// wanted in the run directory, the saver (saver.h) copies it from there, in parallel with the next local
// saves; if it is to be compressed, from the snapshot. If a local save fails on any rank, a save that is also
// wanted in the run directory goes there from the snapshot. A local-only save then fails: it has no fallback,
// to avoid I/O that was not requested.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/job/peer_files.h"
#include "runtime/saving/local_place.h"
#include "runtime/saving/saver.h"

namespace cairn {

// Steps of a local directory that are older than the newest healthy one and not among the newest `keep_last`
// healthy ones. Bounds the node's memory; --save keeps more steps. `steps` is ascending.
// Pure.
std::vector<int64_t> LocalStepsToRetire(const std::vector<StepFacts>& steps, int64_t keep_last);

class LocalSaver {
 public:
  // No other code may use `peers` after this.
  LocalSaver(FileSystem& fs, const LocalPlace& place, Direct direct, Saver& saver,
             std::unique_ptr<ControlPlane> control, PeerFiles& peers);

  void Start(std::shared_ptr<Save> save) {
    FlushInBackground(queue_, [this, save] { Flush(save); });
  }

 private:
  void Flush(const std::shared_ptr<Save>& save);
  Status Commit(Save& save);
  Result<StepSeal> Seal(const Save& save, const Result<ShardReceipt>& receipt);
  Status WriteShare(const Save& save, Committer& committer, const Result<StepSeal>& seal);
  std::shared_ptr<Save> DrainOf(const Save& save) const;
  Status Retire(const Save& save);
  void ReportChange(const Save& save, const Status& status);

  FileSystem& fs_;
  const LocalPlace& place_;
  const Direct direct_;
  Saver& saver_;
  const std::unique_ptr<ControlPlane> control_;
  RankSaveMessages messages_{*control_};
  PeerFiles& peers_;
  std::vector<std::shared_ptr<Save>> drains_;  // still reading from local steps
  SaidOnce leftovers_{"old local step not removed: "};
  H5Views views_;  // of rank 0's seals
  bool failing_ = false;
  WorkerPool queue_{/*threads=*/1};  // last: it ends first, and finishes what it was given
};

}  // namespace cairn
