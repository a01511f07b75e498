#include "tools/serve/failure.h"

#include "ckpt/base/posix_error.h"

namespace cairn {
namespace {

// The Python side has an exception for each kind except the first.
std::string_view KindName(StatusKind kind) {
  constexpr std::string_view kNames[] = {
      "ok",       "not_found", "corrupt", "invalid_argument", "not_supported", "already_exists",
      "no_space", "io_error",  "aborted"};
  static_assert(std::size(kNames) == static_cast<size_t>(StatusKind::kAborted) + 1);
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

nlohmann::json FailureJson(const Status& status) {
  nlohmann::json failure = {{"error", status.message()}, {"kind", KindName(status.kind())}};
  if (const auto call = ParsePosixError(status))
    failure.update({{"errno", call->error}, {"path", call->path}, {"reason", call->reason}});
  return failure;
}

}  // namespace cairn
