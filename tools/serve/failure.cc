#include "tools/serve/failure.h"

#include <nlohmann/json.hpp>

#include "ckpt/base/enum_names.h"
#include "ckpt/base/posix_error.h"

namespace cairn {
namespace {

// The Python side has an exception for each kind except the first.
std::string_view KindName(StatusKind kind) {
  return NameIn<StatusKind::kAborted>({"ok", "not_found", "corrupt", "invalid_argument", "not_supported",
                                       "already_exists", "no_space", "io_error", "aborted"},
                                      kind);
}

}  // namespace

nlohmann::json FailureJson(const Status& status) {
  nlohmann::json failure = {{"error", status.message()}, {"kind", KindName(status.kind())}};
  if (const auto call = ParsePosixError(status))
    failure.update({{"errno", call->error}, {"path", call->path}, {"reason", call->reason}});
  return failure;
}

}  // namespace cairn
