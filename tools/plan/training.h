// The cost of a whole training: time with the batch ramp-up, checkpoints, archive.
#pragma once

#include "ckpt/model/save_interval.h"
#include "tools/plan/search.h"

namespace cairn {

struct TrainingCost {
  double iterations = 0;
  double days = 0;
  double gpu_hours = 0;
  double rampup_days = 0;  // of the days, before the full batch is reached
};

// The cost of `samples`, with Megatron's growth of the batch: `rampup` = start, increment, samples over which
// it grows evenly.
TrainingCost CostOf(const PlanRequest& request, const RunSetup& setup, const TimeConstants& constants,
                    double samples);

// The cost of one checkpoint as `cairn train` writes it.
struct CheckpointCost {
  double bytes = 0;            // weights (2), fp32 master (4) and two moments (8) a parameter; 12 in fp32
  double weight_bytes = 0;     // only weights
  int64_t files = 0;           // one a rank, the index and the manifest
  double save_seconds = 0;     // until durable
  int64_t archive_inodes = 0;  // tars of this many bytes, and their record
};

// `node_gbps`: GB/s that one node writes to the file system.
CheckpointCost CheckpointOf(const PlanRequest& request, const RunSetup& setup, double node_gbps);

// The checkpoints of a whole training.
struct StorageCost {
  double saves = 0;                             // one every `save_interval` steps, and one at the end
  double bytes = 0, files = 0;                  // written
  double kept_bytes = 0, kept_files = 0;        // at most on scratch: those kept, and one being written
  double archive_bytes = 0, archive_files = 0;  // if each is archived
  double save_days = 0;                         // until all are durable; the training continues meanwhile
};

// `keep_last`: as of `cairn train`; 0: all are kept.
StorageCost StorageOf(double iterations, const CheckpointCost& checkpoint, int64_t save_interval,
                      int64_t keep_last);

}  // namespace cairn
