// Packets over a Unix stream socket, with at most one file descriptor each.
#pragma once

#include <mutex>
#include <optional>

#include "ckpt/base/unique_fd.h"
#include "tools/serve/packet.h"

namespace cairn {

struct Message {
  Packet packet;
  UniqueFd descriptor;  // if one came with it
};

class MessageSocket {
 public:
  explicit MessageSocket(UniqueFd socket) : socket_(std::move(socket)) {}

  // The next message; nullopt once the other side has closed. Call from one thread. Errors: Corrupt, IoError.
  Result<std::optional<Message>> Receive();
  // The receiver sees the whole packet or nothing. Safe from several threads. A closed peer is not an error
  // of Send(): Receive() reports it. `descriptor`: negative for none.
  void Send(const Packet& packet, int descriptor = -1);

 private:
  Result<bool> ReadAll(char* to, size_t bytes, UniqueFd* descriptor);

  UniqueFd socket_;
  std::mutex sending_;
};

}  // namespace cairn
