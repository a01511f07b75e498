// The first piece is set last, and starts with the number of pieces: who finds it finds them all.
#include "runtime/comm/store_mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;  // TCPStore refuses values of more than 8 MiB
using Bytes = std::vector<uint8_t>;

}  // namespace

StoreMailbox::StoreMailbox(const c10::intrusive_ptr<c10d::Store>& store, std::string prefix, int rank,
                           int size)
    : store_(store->clone()),
      prefix_(std::move(prefix)),
      rank_(rank),
      size_(size),
      sent_(size),
      received_(size) {}

std::string StoreMailbox::Key(int from, int to, uint64_t number, size_t piece) const {
  return fmt::format("{}/{}/{}/{}/{}", prefix_, from, to, number, piece);
}

void StoreMailbox::Post(int to, std::string message) {
  const uint64_t number = sent_[to]++;
  const uint64_t pieces = std::max<uint64_t>(1, (message.size() + kPieceBytes - 1) / kPieceBytes);
  for (uint64_t piece = pieces; piece-- > 0;) {
    const size_t begin = piece * kPieceBytes;
    const size_t bytes = std::min(message.size() - begin, kPieceBytes);
    const size_t header = piece == 0 ? sizeof(pieces) : 0;
    Bytes value(header + bytes);
    if (header) std::memcpy(value.data(), &pieces, header);
    if (bytes) std::memcpy(value.data() + header, message.data() + begin, bytes);
    store_->set(Key(rank_, to, number, piece), value);
  }
}

std::optional<std::string> StoreMailbox::Poll(int from) {
  const uint64_t number = received_[from];
  if (!store_->check({Key(from, rank_, number, 0)})) return std::nullopt;
  std::string message;
  uint64_t pieces = 1;
  for (uint64_t piece = 0; piece < pieces; ++piece) {
    const std::string key = Key(from, rank_, number, piece);
    const Bytes value = store_->get(key);
    size_t begin = 0;
    if (piece == 0) std::memcpy(&pieces, value.data(), begin = sizeof(pieces));
    message.append(value.begin() + begin, value.end());
    store_->deleteKey(key);
  }
  ++received_[from];
  return message;
}

std::shared_ptr<Mailbox> StoreMailbox::Duplicate(const std::string& name) {
  return std::make_shared<StoreMailbox>(store_, prefix_ + "." + name, rank_, size_);
}

}  // namespace cairn
