// The first level of saves: node-local directories, with parity over the ranks.
//
// The ranks save a snapshot on their nodes (ckpt/job/local_save.h); its memory is then free. If a save is
// also wanted in the run directory, the saver (saver.h) copies it from there, in parallel with the next local
// saves; if it is to be compressed, from the snapshot. If a local save fails on any rank, a save that is also
// wanted in the run directory goes there from the snapshot. A local-only save then fails: it has no fallback,
// to avoid I/O that was not requested.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckpt/job/local_save.h"
#include "runtime/saving/saver.h"

namespace cairn {

class LocalSaver {
 public:
  // No other code may use `peers` after this.
  LocalSaver(FileSystem& fs, std::string run_dir, const LocalPlace& place, Direct direct, Saver& saver,
             std::unique_ptr<ControlPlane> control, PeerFiles& peers);

  void Start(std::shared_ptr<Save> save) {
    FlushInBackground(queue_, [this, save] { Flush(save); });
  }

 private:
  void Flush(const std::shared_ptr<Save>& save);
  Status Commit(Save& save);
  std::shared_ptr<Save> DrainOf(const Save& save) const;
  Status Retire(const Save& save);
  void ReportChange(const Save& save, const Status& status);

  FileSystem& fs_;
  const std::string run_dir_;
  const LocalPlace& place_;
  const Direct direct_;
  Saver& saver_;
  const std::unique_ptr<ControlPlane> control_;
  PeerFiles& peers_;
  std::vector<std::shared_ptr<Save>> drains_;  // still reading from local steps
  SaidOnce leftovers_{"old local step not removed: "};
  H5Views views_;  // of rank 0's seals
  bool failing_ = false;
  int64_t noted_branch_ = -1;        // in RUN/local by this process, on rank 0
  WorkerPool queue_{/*threads=*/1};  // last: it ends first, and finishes what it was given
};

}  // namespace cairn
