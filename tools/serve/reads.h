// Checkpoints that a trainer reads: lists their contents, and reads boxes of their tensors into its memory.
//
// A trainer asks for one window after the other. Several of these reads run at once, each in one thread: the
// disk always has work.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tools/serve/origins.h"
#include "tools/serve/packet.h"
#include "tools/serve/shared_memory.h"
#include "tools/source/open_ckpt.h"

namespace cairn {

// Safe from several threads.
class Reads {
 public:
  // Reports to `origins` which tensors of which steps were read.
  Reads(FileSystem& fs, Origins& origins) : fs_(fs), origins_(origins) {}

  // {"path", "options"?}: a step, a run (its newest step that opens), or any format of another system;
  // options as in ParseSourceOptions. Returns the reply: its contents, with pickles in the tail. Errors:
  // those of OpenAnyCkpt.
  Result<Packet> Open(const nlohmann::json& request);
  // {"window"}: adds memory that the trainer made.
  Status AddWindow(const nlohmann::json& request, UniqueFd descriptor);
  // {"handle", "window", "boxes": [{"tensor", "offset", "extent", "at"}]}: reads all of them, verified.
  // Errors: Corrupt if a box or a place is invalid; those of reading.
  Status Read(const nlohmann::json& request);
  // {"handle"}: verifies checksums that cover more than the boxes read. Call before the data is used. Errors:
  // Corrupt naming the file.
  Status Check(const nlohmann::json& request);
  // {"handle"?, "window"?}
  void Close(const nlohmann::json& request);

 private:
  struct Opened {
    explicit Opened(OpenedSource from);

    OpenedSource source;
    const bool parallel;                   // several threads may read it at once
    const bool cached;                     // most of it is in the page cache, as a guess
    std::mutex mutex;                      // of a read, if they may not, and of a check
    std::shared_ptr<Origins::Known> step;  // null for another system's checkpoint
  };
  Result<std::shared_ptr<Opened>> At(const nlohmann::json& request);
  Result<std::shared_ptr<SharedMemory>> WindowAt(const nlohmann::json& request);

  FileSystem& fs_;
  Origins& origins_;
  std::mutex mutex_;                                   // of all below
  std::map<int64_t, std::shared_ptr<Opened>> opened_;  // by handle; a read that runs holds what it uses
  std::map<int64_t, std::shared_ptr<SharedMemory>> windows_;
  int64_t next_handle_ = 1;
};

}  // namespace cairn
