#include "runtime/control/silent_hosts.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/base/short_list.h"
#include "runtime/control/status_board.h"

namespace cairn {

SilentHosts FindSilentHosts(const std::vector<std::optional<double>>& ages, int own, double limit) {
  SilentHosts found;
  if (!ages[own] || *ages[own] > limit) return found;
  const auto is_silent = [&](int host) { return host != own && ages[host] && *ages[host] > limit; };
  const int count = static_cast<int>(ages.size());
  double longest = 0;
  int others = 0, lowest = own;
  for (int host = count - 1; host >= 0; --host) {
    if (ages[host] && !is_silent(host)) lowest = host;
    if (host != own && ages[host]) ++others;
    if (is_silent(host)) longest = std::max(longest, *ages[host]);
  }
  for (int host = 0; host < count; ++host)
    if (is_silent(host) && *ages[host] >= longest - limit / 2) found.first.push_back(host);
  found.speaks = lowest == own;
  found.cut_off = others > 1 && std::ssize(found.first) == others;
  if (found.cut_off) found.first = {own};
  return found;
}

namespace {

std::string NamesOf(const StatusBoard& board, const std::vector<int>& first_ranks) {
  return ShortList(first_ranks.size(), [&](size_t i) {
    return fmt::format("host {} (first rank {})", board.host(first_ranks[i]), first_ranks[i]);
  });
}

}  // namespace

HostsReport ReportHosts(const StatusBoard& board, int own_rank) {
  HostsReport report;
  if (board.first_ranks().empty()) return report;
  std::vector<int> hosts = board.first_ranks(), never;
  std::ranges::sort(hosts);
  hosts.erase(std::ranges::unique(hosts).begin(), hosts.end());
  std::vector<std::optional<double>> ages;
  for (int first : hosts) {
    ages.push_back(board.Silence(first));
    if (!ages.back()) never.push_back(first);
  }
  const int own = static_cast<int>(std::ranges::find(hosts, board.first_ranks()[own_rank]) - hosts.begin());
  const SilentHosts found = FindSilentHosts(ages, own, board.silence_limit());
  report.speaks = found.speaks;
  report.never_heard = NamesOf(board, never);
  report.all_heard = ages[own] && *ages[own] <= board.silence_limit() && never.empty() && found.first.empty();
  if (found.first.empty()) return report;
  std::vector<int> first;
  for (int host : found.first) first.push_back(hosts[host]);
  double seconds = 0;
  for (int host = 0; host < std::ssize(hosts); ++host)
    if (host != own && ages[host]) seconds = std::max(seconds, *ages[host]);
  report.silent = found.cut_off
                      ? fmt::format("{} is cut off: it has heard none of the others for {:.1f} s",
                                    NamesOf(board, first), seconds)
                      : fmt::format("{} fell silent first, {:.1f} s ago", NamesOf(board, first), seconds);
  if (hosts.size() == 2) report.silent += ", or this host is cut off";
  return report;
}

}  // namespace cairn
