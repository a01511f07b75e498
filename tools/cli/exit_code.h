// Exit statuses of cairn, the same for every verb, and how each verb's --help lists them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace cairn {

enum ExitCode : int {
  kExitDone = 0,
  kExitCheckFailed = 1,  // the check failed, or the two differ
  kExitTrouble = 2,      // misuse, or something stood in the way
};

// The end of --help. `check_failed` says when the verb exits with 1; empty for a verb that never does.
inline std::string HelpFooter(std::string_view example, std::string_view check_failed = "") {
  std::string footer = fmt::format("Example:\n  {}\n\nExit status: 0 done", example);
  if (!check_failed.empty()) footer += fmt::format(", 1 {}", check_failed);
  return footer + ", 2 misuse or trouble.";
}

}  // namespace cairn
