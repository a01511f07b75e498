// A host has several addresses, and not all of them can be reached. So a host that is not heard is sent to at
// all of its addresses, and one that is heard at the one that its newest datagram came from.
#include "runtime/control/heartbeat.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "ckpt/job/socket_place.h"
#include "runtime/control/status_board.h"

namespace cairn {
namespace {

constexpr size_t kMaxMessage = 64;
constexpr double kLongestPause =
    1.0;  // seconds between two turns; in a longer one this process was suspended

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string MessageOf(const std::string& word, int first_rank) {
  return fmt::format("{}/{}", word, first_rank);
}

}  // namespace

Heartbeat::Heartbeat(UniqueFd socket, std::string place)
    : socket_(std::move(socket)), place_(std::move(place)) {}

Result<std::unique_ptr<Heartbeat>> Heartbeat::Open() {
  CAIRN_ASSIGN_OR_RETURN(auto place, OpenPlace(SOCK_DGRAM | SOCK_NONBLOCK));
  return std::unique_ptr<Heartbeat>(new Heartbeat(std::move(place.first), std::move(place.second)));
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
