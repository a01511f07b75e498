// A helper of cairn.torch as a thread of this process, with its trainer's end of the socket.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tools/serve/message_socket.h"
#include "tools/serve/server.h"

namespace cairn {

class ServedHelper {
 public:
  explicit ServedHelper(FileSystem& fs = FileSystem::Posix()) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    socket_.emplace(UniqueFd(fd_ = ends[0]));
    helper_ = std::thread([&fs, fd = ends[1]] {
      (void)ServeTrainer(fs, UniqueFd(fd), [](const std::string&, bool) { return 1.0; });
    });
  }
  ~ServedHelper() { Die(); }
  // As when a trainer is killed: its socket closes, and its helper continues with the saves that it has.
  void Die() {
    socket_.reset();
    if (helper_.joinable()) helper_.join();
  }

  // The reply to a request; events are skipped.
  Message Ask(nlohmann::json request, std::string tail = {}, int descriptor = -1) {
    return Await(Send(std::move(request), std::move(tail), descriptor));
  }
  int64_t Send(nlohmann::json request, std::string tail = {}, int descriptor = -1) {
    request["id"] = ++id_;
    SendAsItIs(std::move(request), std::move(tail), descriptor);
    return id_;
  }
  void SendAsItIs(nlohmann::json request, std::string tail = {}, int descriptor = -1) {
    socket_->Send({std::move(request), std::move(tail)}, descriptor);
  }
  // The helper ends by itself.
  bool Ended() { return Await(-1).packet.head.empty(); }
  // The next reply or event.
  nlohmann::json Next() {
    auto message = socket_->Receive();
    return message.ok() && *message ? (*message)->packet.head : nlohmann::json();
  }
  // Replies to other requests, which may come before this one, are kept.
  Message Await(int64_t id) {
    while (!others_.contains(id))
      if (!Receive()) return {};
    return std::move(others_.extract(id).mapped());
  }
  // Whether the reply has come, or comes within this time.
  bool Replied(int64_t id, int milliseconds) {
    pollfd socket{.fd = fd_, .events = POLLIN, .revents = 0};
    while (!others_.contains(id) && ::poll(&socket, 1, milliseconds) > 0 && Receive()) {
    }
    return others_.contains(id);
  }
  // Await() gives it again.
  void PutBack(nlohmann::json head) {
    const auto id = head["id"].get<int64_t>();
    others_.insert_or_assign(id, Message{{std::move(head), {}}, {}});
  }
  // Whether the save has said "written", as far as was received.
  bool HasWritten(int64_t id) const { return written_.contains(id); }

 private:
  bool Receive() {
    auto message = socket_->Receive();
    if (!message.ok() || !*message) return false;
    const nlohmann::json& head = (*message)->packet.head;
    const auto id = head["id"].get<int64_t>();
    if (head.contains("event"))
      written_.insert(id);
    else
      others_.insert_or_assign(id, std::move(**message));
    return true;
  }

  int fd_ = -1;  // of the socket
  std::optional<MessageSocket> socket_;
  std::thread helper_;
  int64_t id_ = 0;
  std::map<int64_t, Message> others_;  // replies that nobody has asked for yet, by request
  std::set<int64_t> written_;          // saves
};

}  // namespace cairn
