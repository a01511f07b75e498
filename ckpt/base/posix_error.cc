#include "ckpt/base/posix_error.h"

#include <cerrno>
#include <cstring>

namespace cairn {
namespace {

constexpr int kErrnos = 134;  // of Linux

}  // namespace

Status PosixError(std::string_view what, const std::string& path, int error) {
  const char* text = strerror(error);
  switch (error) {
    case ENOENT:
      if (what == "find" || what == "list" || what == "open") return NotFound("{}: {}", path, text);
      return NotFound("{} {}: {}", what, path, text);
    case EEXIST:
    case ENOTEMPTY:
      return AlreadyExists("{} {}: {}; nothing is overwritten; choose another path", what, path, text);
    case ENOSPC:
    case EDQUOT:
      return NoSpace("{} {}: {}; free some space or choose another place", what, path, text);
    default:
      return IoError("{} {}: {}", what, path, text);
  }
}

bool IsRefusal(const Status& status) {
  return status.kind() == StatusKind::kIoError || status.kind() == StatusKind::kNoSpace ||
         status.kind() == StatusKind::kAborted;
}

// WHAT and a context may have colons in them; the text of errno follows the last path.
std::optional<PosixFailure> ParsePosixError(const Status& status) {
  const std::string& message = status.message();
  const size_t colon = message.rfind(": ");
  if (colon == message.npos || colon == 0) return std::nullopt;
  const size_t space = message.rfind(" /", colon);
  const size_t path = space == message.npos ? 0 : space + 1;
  if (message[path] != '/') return std::nullopt;
  std::string reason = message.substr(colon + 2);
  const std::string text = reason.substr(0, reason.find(';'));
  for (int error = 1; error < kErrnos; ++error)
    if (text == strerror(error))
      return PosixFailure{error, message.substr(path, colon - path), std::move(reason)};
  return std::nullopt;
}

Status TransferError(bool write, const std::string& path, uint64_t offset, size_t bytes, int error) {
  if (!write && error == 0)
    return Corrupt("{} ends at byte {}, {} bytes short; the file was truncated", path, offset, bytes);
  if (!write && error == EIO)
    return Corrupt("at byte {}: read {}: {}; the disk cannot read these bytes", offset, path,
                   strerror(error));
  return PosixError(write ? "write" : "read", path, error == 0 ? EIO : error)
      .WithContext(fmt::format("at byte {}", offset));
}

}  // namespace cairn
