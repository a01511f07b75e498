#include "tools/serve/message_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "ckpt/base/posix_error.h"

namespace cairn {
namespace {

constexpr const char* kSocketName = "the trainer's socket";

// Room for one descriptor, aligned as the kernel wants it.
union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

// False at the end of the stream, before the first byte.
Result<bool> MessageSocket::ReadAll(char* to, size_t bytes, UniqueFd* descriptor) {
  for (size_t done = 0; done < bytes;) {
    iovec part{to + done, bytes - done};
    ControlBuffer control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != ECONNRESET) return PosixError("cannot read", kSocketName, errno);
    if (got <= 0) {
      if (done == 0) return false;
      return Corrupt("{} ended within a message", kSocketName);
    }
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
        header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
      UniqueFd owner(fd);
      if (descriptor != nullptr) *descriptor = std::move(owner);
    }
    done += static_cast<size_t>(got);
  }
  return true;
}

Result<std::optional<Message>> MessageSocket::Receive() {
  Message message;
  std::string bytes(kPacketHeaderBytes, '\0');
  CAIRN_ASSIGN_OR_RETURN(const bool any, ReadAll(bytes.data(), bytes.size(), &message.descriptor));
  if (!any) return std::optional<Message>();
  CAIRN_ASSIGN_OR_RETURN(const PacketSize size, SizeOfPacket(bytes));
  bytes.resize(kPacketHeaderBytes + size.head + size.tail);
  CAIRN_ASSIGN_OR_RETURN(const bool rest, ReadAll(bytes.data() + kPacketHeaderBytes,
                                                  bytes.size() - kPacketHeaderBytes, &message.descriptor));
  if (!rest && bytes.size() > kPacketHeaderBytes) return std::optional<Message>();
  CAIRN_ASSIGN_OR_RETURN(message.packet, DecodePacket(bytes));
  return std::optional<Message>(std::move(message));
}

void MessageSocket::Send(const Packet& packet, int descriptor) {
  const std::string bytes = EncodePacket(packet);
  const std::scoped_lock lock(sending_);
  for (size_t done = 0; done < bytes.size();) {
    iovec part{const_cast<char*>(bytes.data()) + done, bytes.size() - done};
    ControlBuffer control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (done == 0 && descriptor >= 0) {
      message.msg_control = &control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return;
    done += static_cast<size_t>(sent);
  }
}

}  // namespace cairn
