#include "ckpt/job/socket_place.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>

namespace cairn {
namespace {

constexpr size_t kMaxAddresses = 16;

std::string TextOf(in_addr address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  return inet_ntop(AF_INET, &address, text.data(), text.size());
}

// This host's addresses, or the loopback's if it has no other.
std::vector<std::string> OwnAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<std::string> addresses, loopback;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || !(each->ifa_flags & IFF_UP))
      continue;
    auto& into = (each->ifa_flags & IFF_LOOPBACK) ? loopback : addresses;
    into.push_back(TextOf(reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr));
  }
  return addresses.empty() ? loopback : addresses;
}

}  // namespace

Result<std::pair<UniqueFd, std::string>> OpenPlace(int type) {
  UniqueFd fd(socket(AF_INET, type | SOCK_CLOEXEC, 0));
  sockaddr_in any{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_ANY)}, .sin_zero = {}};
  socklen_t length = sizeof(any);
  if (!fd.ok() || bind(fd.get(), reinterpret_cast<sockaddr*>(&any), length) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&any), &length) != 0)
    return IoError("no socket: {}", strerror(errno));
  const std::vector<std::string> addresses = OwnAddresses();
  if (addresses.empty()) return IoError("no network interface has an IPv4 address");
  return std::pair(std::move(fd), fmt::format("{} {}", ntohs(any.sin_port), fmt::join(addresses, " ")));
}

std::vector<sockaddr_in> ParsePlace(const std::string& place) {
  std::istringstream in(place);
  uint16_t port = 0;
  std::vector<sockaddr_in> addresses;
  in >> port;
  for (std::string text; addresses.size() < kMaxAddresses && in >> text;) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {}, .sin_zero = {}};
    if (inet_pton(AF_INET, text.c_str(), &address.sin_addr) == 1) addresses.push_back(address);
  }
  return addresses;
}

}  // namespace cairn
