// How each verb's --help lists its exit statuses.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "ckpt/base/exit_code.h"

namespace cairn {

// The end of --help. `check_failed` says when the verb exits with 1; empty for a verb that never does.
// `again`: what the same command does after kExitLostPeer; empty for a verb without peers.
inline std::string HelpFooter(std::string_view example, std::string_view check_failed = "",
                              std::string_view again = "") {
  std::string footer = fmt::format("Example:\n  {}\n\nExit status: 0 done", example);
  if (!check_failed.empty()) footer += fmt::format(", 1 {}", check_failed);
  footer += ", 2 misuse or trouble";
  if (!again.empty())
    footer += fmt::format(", {} a rank or a node was lost: the same command {}", int{kExitLostPeer}, again);
  return footer + ".";
}

}  // namespace cairn
