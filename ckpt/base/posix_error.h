// errno becomes a Status here and nowhere else.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

// "WHAT PATH: strerror" ("PATH: strerror" if a file was looked for and does not exist), with the matching
// kind and, if there is one, the remedy.
Status PosixError(std::string_view what, const std::string& path, int error);

// True if the system refused something (too many open files, no permission, no memory): the bytes themselves
// may be good.
bool IsRefusal(const Status& status);

// The parts of a status of PosixError. nullopt if it is not one, or its path is not absolute. `reason` is the
// text of errno, with what to do.
struct PosixFailure {
  int error = 0;
  std::string path;
  std::string reason;
};
std::optional<PosixFailure> ParsePosixError(const Status& status);

// The status of a transfer of `bytes` at `offset` that ended early. `error`: errno, or 0 at the end of the
// file.
Status TransferError(bool write, const std::string& path, uint64_t offset, size_t bytes, int error);

}  // namespace cairn
