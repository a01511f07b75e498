// How a training saves and what it resumes from: read by the checkpointer, its savers and the resumer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "ckpt/io/file_system.h"
#include "ckpt/model/topology.h"
#include "runtime/config/train_config.h"
#include "runtime/control/train_state.h"
#include "runtime/snapshot/device_snapshot.h"

namespace cairn {

struct CheckpointerOptions {
  TrainConfig config;  // validated; an empty --save never saves
  Topology topology;
  Model model;  // of this training, for the manifest; empty: accept any step's
  // The data's tokenizer, by file name; empty: the one beside the data. Those of steps come first.
  std::map<std::string, std::string> tokenizer_files = {};
  // More facts about the optimizer for the saved state, for conversion to other systems; may be empty.
  std::function<nlohmann::json(const TrainState&)> optimizer_facts;
  Direct direct = Direct::kAuto;
  FileSystem& fs = FileSystem::Posix();  // that --save is written and read back through
  // Device memory to host and back; used for parts with on_gpu only.
  std::function<void(void* to, const void* from, size_t bytes, bool to_device)> device_copy;
  // For copies off a GPU; empty: by device_copy.
  std::function<Result<std::unique_ptr<DeviceSnapshot>>()> device_snapshot;
};

}  // namespace cairn
