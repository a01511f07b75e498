// A Status, or a payload, on its way between ranks.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"
#include "runtime/control/console.h"

namespace cairn {

class ControlPlane;

std::string EncodeOutcome(const Status& status, std::string_view payload = {});
// The payload, or the status that was sent. Errors: Corrupt if it is neither.
Result<std::string> DecodeOutcome(std::string_view blob);

// True for failures that another step, or a rebuilt one, may not have: damage, not a request that no step can
// meet.
bool IsDamage(StatusKind kind);

// Collective: OK on all ranks where `mine` is on all, else on all of them the failure of one rank, named; one
// that is not damage if there is such.
Status Agree(ControlPlane& control, const Status& mine, std::string_view what);

// Collective: on every rank what `make` returns on rank 0, the only rank that calls it; its failure too.
Result<std::string> FromRoot(ControlPlane& control, std::string_view what,
                             const std::function<Result<std::string>()>& make);

// Collective: every rank's blob, on every rank.
Result<std::vector<std::string>> ShareAll(ControlPlane& control, std::string blob, std::string_view what);

}  // namespace cairn
