// How each verb's --help lists its exit statuses.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "ckpt/base/exit_code.h"

namespace cairn {

// The end of --help. `check_failed` says when the verb exits with 1; empty for a verb that never does.
// `further`: statuses of this verb alone, "75 why"; empty if there are none.
inline std::string HelpFooter(std::string_view example, std::string_view check_failed = "",
                              std::string_view further = "") {
  std::string footer = fmt::format("Example:\n  {}\n\nExit status: 0 done", example);
  if (!check_failed.empty()) footer += fmt::format(", 1 {}", check_failed);
  footer += ", 2 misuse or trouble";
  if (!further.empty()) footer += fmt::format(", {}", further);
  return footer + ".";
}

}  // namespace cairn
