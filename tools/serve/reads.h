// Checkpoints that a trainer reads: lists their contents, and reads boxes of their tensors into its memory.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tools/serve/packet.h"
#include "tools/serve/shared_memory.h"
#include "tools/source/open_ckpt.h"

namespace cairn {

class Reads {
 public:
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
  std::map<int64_t, OpenedSource> opened_;  // by handle
  std::map<int64_t, SharedMemory> windows_;
  int64_t next_handle_ = 1;
};

}  // namespace cairn
