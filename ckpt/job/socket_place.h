// Where other hosts reach a socket of this process, over IPv4. A host has several addresses, and not all of
// them can be reached from everywhere: others try them in turn.
#pragma once

#include <netinet/in.h>

#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

// An environment variable: the network interface on which others reach this process.
inline constexpr const char* kInterfaceVariable = "CAIRN_SOCKET_IFNAME";

// A socket on any free port, and its place: "PORT ADDRESS...", those of this host, or the loopback's if it
// has no other; with kInterfaceVariable only that interface's, to which it is bound. `type` as of socket(2).
// Errors: IoError; InvalidArgument for another interface, naming those that exist.
Result<std::pair<UniqueFd, std::string>> OpenPlace(int type);
// The addresses, with the port. What is not one is left out.
std::vector<sockaddr_in> ParsePlace(const std::string& place);

}  // namespace cairn
