// Which host fell silent first: the ranks of all others wait for it, or for a host that waits for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace cairn {

class StatusBoard;

struct SilentHosts {
  std::vector<int> first;  // those that fell silent first, at about the same time
  bool cut_off = false;    // this host hears none of several others: it is itself the only one in `first`
  bool speaks = false;     // this host is the first of those that are not silent
  bool operator==(const SilentHosts&) const = default;
};

// `ages` by host: the seconds since this one heard it; nullopt: never, so nothing is known of it. `ages[own]`
// is that of this host's own heartbeat: if that stands still, this host can judge nobody. A host is silent
// after `limit` seconds. Pure.
SilentHosts FindSilentHosts(const std::vector<std::optional<double>>& ages, int own, double limit);

// What the board knows of the hosts.
struct HostsReport {
  bool all_heard = false;   // every other host beats
  bool speaks = false;      // see SilentHosts
  std::string silent;       // "host n3 (first rank 4) fell silent first, 20.3 s ago"; empty: none did
  std::string never_heard;  // "host n3 (first rank 4), host n4 (first rank 6)"; empty: all were
};

HostsReport ReportHosts(const StatusBoard& board, int own_rank);

}  // namespace cairn
