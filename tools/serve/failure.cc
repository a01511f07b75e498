#include "tools/serve/failure.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/base/enum_names.h"
#include "ckpt/base/posix_error.h"

namespace cairn {
namespace {

// The Python side has an exception for each kind except the first.
constexpr std::string_view kKinds[] = {
    "ok",       "not_found", "corrupt", "invalid_argument", "not_supported", "already_exists",
    "no_space", "io_error",  "aborted"};

}  // namespace

nlohmann::json FailureJson(const Status& status) {
  nlohmann::json failure = {{"error", status.message()},
                            {"kind", NameIn<StatusKind::kAborted>(kKinds, status.kind())}};
  if (const auto call = ParsePosixError(status))
    failure.update({{"errno", call->error}, {"path", call->path}, {"reason", call->reason}});
  return failure;
}

Status StatusOf(const nlohmann::json& failure) {
  if (failure.empty()) return OkStatus();
  const auto kind = std::ranges::find(kKinds, failure.value("kind", "aborted"));
  const auto number =
      kind == std::end(kKinds) ? StatusKind::kAborted : static_cast<StatusKind>(kind - std::begin(kKinds));
  return {number == StatusKind::kOk ? StatusKind::kAborted : number, failure.value("error", "it failed")};
}

}  // namespace cairn
