// A host has several addresses, and not all of them can be reached. So a host that is not heard is sent to at
// all of its addresses, and one that is heard at the one that its newest datagram came from.
#include "runtime/control/heartbeat.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>
#include <utility>

#include "runtime/control/status_board.h"

namespace cairn {
namespace {

constexpr size_t kMaxAddresses = 16;
constexpr size_t kMaxMessage = 64;
constexpr double kLongestPause =
    1.0;  // seconds between two turns; in a longer one this process was suspended

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

std::string MessageOf(const std::string& word, int first_rank) {
  return fmt::format("{}/{}", word, first_rank);
}

}  // namespace

Heartbeat::Heartbeat(UniqueFd socket, std::string place)
    : socket_(std::move(socket)), place_(std::move(place)) {}

Result<std::unique_ptr<Heartbeat>> Heartbeat::Open() {
  UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in any{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_ANY)}, .sin_zero = {}};
  socklen_t length = sizeof(any);
  if (!fd.ok() || bind(fd.get(), reinterpret_cast<sockaddr*>(&any), length) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&any), &length) != 0)
    return IoError("no UDP socket: {}", strerror(errno));
  const std::vector<std::string> addresses = OwnAddresses();
  if (addresses.empty()) return IoError("no network interface has an IPv4 address");
  return std::unique_ptr<Heartbeat>(
      new Heartbeat(std::move(fd), fmt::format("{} {}", ntohs(any.sin_port), fmt::join(addresses, " "))));
}

void Heartbeat::Begin(std::shared_ptr<StatusBoard> board, const std::string& word, int own,
                      const std::map<int, std::string>& places, double seconds) {
  board_ = std::move(board);
  own_ = own;
  seconds_ = seconds;
  message_ = MessageOf(word, own);
  for (const auto& [first_rank, place] : places)
    if (first_rank != own)
      peers_.emplace(MessageOf(word, first_rank),
                     Peer{.first_rank = first_rank, .addresses = ParsePlace(place)});
}

void Heartbeat::Turn() {
  const double now = SecondsNow();
  if (last_turn_ > 0 && now - last_turn_ > kLongestPause) board_->ForgiveSilence(now - last_turn_);
  last_turn_ = now;
  board_->Hear(own_);
  Receive();
  if (now - last_beat_ < seconds_) return;
  last_beat_ = now;
  Beat();
}

// More than the peers send between two turns, and not so much that a flood holds up the watchdog.
void Heartbeat::Receive() {
  for (size_t left = 2 * peers_.size() + 256; left > 0; --left) {
    std::array<char, kMaxMessage> bytes;
    sockaddr_in from{};
    socklen_t length = sizeof(from);
    const ssize_t got =
        recvfrom(socket_.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0) continue;  // the echo of a datagram that did not arrive
    const auto peer = peers_.find(std::string_view(bytes.data(), static_cast<size_t>(got)));
    if (peer == peers_.end()) continue;
    peer->second.heard_from = from;
    board_->Hear(peer->second.first_rank);
  }
}

// A datagram that cannot be sent is one that does not arrive.
void Heartbeat::Beat() {
  const auto send = [&](const sockaddr_in& to) {
    (void)sendto(socket_.get(), message_.data(), message_.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                 sizeof(to));
  };
  for (const auto& [message, peer] : peers_) {
    const std::optional<double> silence = board_->Silence(peer.first_rank);
    if (silence && *silence <= 3 * seconds_)
      send(peer.heard_from);
    else
      std::ranges::for_each(peer.addresses, send);
  }
}

}  // namespace cairn
