#include "ckpt/job/socket_place.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>

namespace cairn {
namespace {

constexpr size_t kMaxAddresses = 16;

struct OwnAddress {
  std::string interface;
  in_addr address;
  bool loopback;

  std::string Text() const {
    std::array<char, INET_ADDRSTRLEN> text{};
    return inet_ntop(AF_INET, &address, text.data(), text.size());
  }
};

std::vector<OwnAddress> OwnAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<OwnAddress> addresses;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || !(each->ifa_flags & IFF_UP))
      continue;
    addresses.push_back({each->ifa_name, reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr,
                         (each->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return addresses;
}

// The addresses of the named interface. Without a name: those of all interfaces, but the loopback's only if
// the host has no other.
Result<std::vector<OwnAddress>> AddressesOf(const std::string& interface) {
  const std::vector<OwnAddress> all = OwnAddresses();
  std::vector<OwnAddress> chosen;
  for (const OwnAddress& each : all)
    if (interface.empty() ? !each.loopback : each.interface == interface) chosen.push_back(each);
  if (interface.empty() && chosen.empty()) chosen = all;
  if (!chosen.empty()) return chosen;
  if (all.empty()) return IoError("no network interface has an IPv4 address");
  std::vector<std::string> known;
  for (const OwnAddress& each : all) known.push_back(fmt::format("{} ({})", each.interface, each.Text()));
  return InvalidArgument("{}={}: this host has no such network interface with an IPv4 address, but {}",
                         kInterfaceVariable, interface, fmt::join(known, ", "));
}

}  // namespace

Result<std::pair<UniqueFd, std::string>> OpenPlace(int type) {
  const char* const named = std::getenv(kInterfaceVariable);
  const std::string interface = named != nullptr ? named : "";
  CAIRN_ASSIGN_OR_RETURN(std::vector<OwnAddress> addresses, AddressesOf(interface));
  if (!interface.empty()) addresses.resize(1);
  sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_ANY)}, .sin_zero = {}};
  if (!interface.empty()) at.sin_addr = addresses[0].address;
  UniqueFd fd(socket(AF_INET, type | SOCK_CLOEXEC, 0));
  socklen_t length = sizeof(at);
  if (!fd.ok() || bind(fd.get(), reinterpret_cast<sockaddr*>(&at), length) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0)
    return IoError("no socket: {}", strerror(errno));
  std::vector<std::string> texts;
  for (const OwnAddress& each : addresses) texts.push_back(each.Text());
  return std::pair(std::move(fd), fmt::format("{} {}", ntohs(at.sin_port), fmt::join(texts, " ")));
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
