// Checkpoints that a process reads: lists their contents, and reads boxes of their tensors into its memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ckpt/job/peer_file_system.h"
#include "tools/serve/origins.h"
#include "tools/source/open_ckpt.h"

namespace cairn {

// The boxes of cairn_load_read() (cairn_load.h).
struct WantedBoxes {
  uint64_t count = 0;
  const uint64_t* tensors = nullptr;
  const uint64_t* offsets = nullptr;
  const uint64_t* extents = nullptr;
  void* const* places = nullptr;
};

// Safe from several threads.
class Reads {
 public:
  explicit Reads(FileSystem& fs) : fs_(fs) {}

  struct Contents {
    std::string json;     // the description
    std::string pickles;  // that it points into
  };
  // A step, a run (its newest step that opens), or any format of another system; options as in
  // ParseSourceOptions. With "local" it is a local step, some of whose files are read from other ranks:
  // {"secret", "places", "names", "elsewhere": {file: [rank, bytes]}}. Errors: those of OpenAnyCkpt.
  Result<Contents> Open(const std::string& path, const nlohmann::json& options, int64_t& handle);
  // Reads all of them, verified: the boxes of a step with all cores that the process may use. Errors:
  // InvalidArgument if a box is not one of the checkpoint's; those of reading.
  Status Read(int64_t handle, const WantedBoxes& wanted);
  // Verifies checksums that cover more than the boxes read. Call before the data is used. Errors: Corrupt
  // naming the file.
  Status Check(int64_t handle);
  // The step, with the tensors that were read; nullopt for another system's checkpoint.
  Result<std::optional<nlohmann::json>> Origin(int64_t handle);
  void Close(int64_t handle);

 private:
  struct Opened {
    Opened(OpenedSource from, std::unique_ptr<PeerFiles> others);

    const std::unique_ptr<PeerFiles> peers;  // of a local step; null of others
    OpenedSource source;
    const bool parallel;                 // several threads may read it at once
    std::mutex mutex;                    // of a read, if they may not, of a check, and of `step`
    std::optional<Origins::Known> step;  // nullopt for another system's checkpoint
  };
  Result<std::shared_ptr<Opened>> At(int64_t handle);

  FileSystem& fs_;
  std::mutex mutex_;                                   // of all below
  std::map<int64_t, std::shared_ptr<Opened>> opened_;  // by handle; a read that runs holds what it uses
};

}  // namespace cairn
