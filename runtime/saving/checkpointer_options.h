// How a training saves and what it resumes from: read by the checkpointer, its savers and the resumer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "ckpt/model/save_interval.h"
#include "ckpt/model/topology.h"
#include "ckpt/run/run_dir.h"
#include "runtime/control/train_state.h"
#include "runtime/saving/local_place.h"
#include "runtime/saving/save_codec.h"
#include "runtime/snapshot/device_snapshot.h"

namespace cairn {

// What to do when a save is due and the snapshot's memory still holds the previous one.
enum class SaveOverlap {
  kWait,    // until the previous one is durable
  kSkip,    // skip this one, on all ranks
  kDouble,  // have a second snapshot; wait only if both are in use
};

struct CheckpointerOptions {
  std::string save_dir;            // run directory; empty: never saves
  std::string load;                // CKPT to start from if save_dir has no step yet; may be empty
  bool finetune = false;           // take only the weights of `load`, from their masters if there are any
  bool no_load_optim = false;      // take all of `load` but the optimizer's states and the schedule
  bool reset_progress = false;     // `load` gives weights and optimizer to a training that begins
  bool weights_as_stored = false;  // of `load` with `finetune`, even if it has masters
  bool load_unhealthy = false;     // take the newest step, healthy or not
  bool start_anew = false;         // even if save_dir had steps and has none any more
  std::string
      tokenizer;  // directory of the data's tokenizer; those of steps in `save_dir` and `load` come first
  std::map<std::string, std::string> tokenizer_files = {};  // instead, by name
  int64_t save_interval = 0;  // steps; 0: only when forced; below 0: AutoInterval decides
  double node_failure_seconds = kNodeMtbfHours * 3600;  // between failures of one node, for AutoInterval
  LocalOptions local;                                   // node-local steps, before every save to save_dir
  int64_t local_interval = 0;  // steps between local saves; 0: only those that save_dir gets, too
  bool lazy = true;            // snapshots are copied under the next forward and backward
  SaveOverlap overlap = SaveOverlap::kWait;
  CodecMode codec = CodecMode::kNone;
  int codec_threads = 2;      // of each rank, that compress
  bool split_master = false;  // of a weight and its master, store only what the other does not give
  RetentionPolicy retention;
  Topology topology;
  nlohmann::json model;  // of this training, for the manifest; empty: accept any step's
  // More facts about the optimizer for the saved state, for conversion to other systems; may be empty.
  std::function<nlohmann::json(const TrainState&)> optimizer_facts;
  Direct direct = Direct::kAuto;
  // Device memory to host and back; used for parts with on_gpu only.
  std::function<void(void* to, const void* from, size_t bytes, bool to_device)> device_copy;
  // For copies off a GPU; empty: by device_copy.
  std::function<Result<std::unique_ptr<DeviceSnapshot>>()> device_snapshot;
};

}  // namespace cairn
