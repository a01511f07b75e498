#include "ckpt/base/posix_error.h"

#include <cerrno>
#include <cstring>

namespace cairn {

Status PosixError(std::string_view what, const std::string& path, int error) {
  const char* text = strerror(error);
  switch (error) {
    case ENOENT:
      if (what == "find" || what == "list" || what == "open") return NotFound("{}: {}", path, text);
      return NotFound("{} {}: {}", what, path, text);
    case EEXIST:
    case ENOTEMPTY:
      return AlreadyExists("{} {}: {}; nothing is overwritten, choose another place", what, path, text);
    case ENOSPC:
    case EDQUOT:
      return NoSpace("{} {}: {}; free some space or choose another place", what, path, text);
    default:
      return IoError("{} {}: {}", what, path, text);
  }
}

bool IsRefusal(const Status& status) {
  return status.kind() == StatusKind::kIoError || status.kind() == StatusKind::kAborted;
}

Status TransferError(bool write, const std::string& path, uint64_t offset, size_t bytes, int error) {
  if (!write && error == 0)
    return Corrupt("{} ends at byte {}, {} bytes short; the file was truncated", path, offset, bytes);
  if (!write && error == EIO)
    return Corrupt("at byte {}: read {}: {}; the disk does not give these bytes", offset, path,
                   strerror(error));
  return PosixError(write ? "write" : "read", path, error == 0 ? EIO : error)
      .WithContext(fmt::format("at byte {}", offset));
}

}  // namespace cairn
