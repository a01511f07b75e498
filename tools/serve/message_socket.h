// Packets over a Unix stream socket, with at most one file descriptor each.
#pragma once

#include <mutex>
#include <optional>

#include "ckpt/base/unique_fd.h"
#include "tools/serve/packet.h"

namespace cairn {

struct Message {
  Packet packet;
  UniqueFd descriptor;  // where one came with it
};

class MessageSocket {
 public:
  explicit MessageSocket(UniqueFd socket) : socket_(std::move(socket)) {}

  // The next message; nothing once the other side is gone. From one thread. Errors: Corrupt, IoError.
  Result<std::optional<Message>> Receive();
  // Whole or not at all as the receiver sees it; safe from several threads. A peer that is gone is no error:
  // Receive() hears of it. `descriptor`: negative for none.
  void Send(const Packet& packet, int descriptor = -1);

 private:
  Result<bool> ReadAll(char* to, size_t bytes, UniqueFd* descriptor);

  UniqueFd socket_;
  std::mutex sending_;
};

}  // namespace cairn
