// A Status, or a payload, on its way between ranks.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/status.h"

namespace cairn {

std::string EncodeOutcome(const Status& status, std::string_view payload = {});
// The payload, or the status that was sent. Errors: Corrupt where it is neither.
Result<std::string> DecodeOutcome(std::string_view blob);

// A line on stderr under the program's name.
void Say(const std::string& line);

}  // namespace cairn
