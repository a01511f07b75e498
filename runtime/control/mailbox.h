// Messages of bytes between the ranks of a world, over MPI or the TCP store, for the control plane.
//
// Messages of a pair of ranks arrive in order. No call blocks for long; one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace cairn {

inline constexpr size_t kMaxMessageBytes = (size_t{1} << 31) - 1;  // MPI's count is an int

class Mailbox {
 public:
  virtual ~Mailbox() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Sends at most kMaxMessageBytes to another rank; the mailbox keeps the bytes until they have left.
  virtual void Post(int to, std::string message) = 0;
  // True once everything posted has left.
  virtual bool Delivered() = 0;
  // The next message from another rank, if one has arrived.
  virtual std::optional<std::string> Poll(int from) = 0;

  // Another mailbox over the same ranks, whose messages do not mix with this one's. Collective.
  virtual std::shared_ptr<Mailbox> Duplicate(const std::string& name) = 0;
};

}  // namespace cairn
