// Small messages between all ranks, from any thread: commits, votes, reports. rank_message.h builds agreement
// on top of them.
//
// Apart from the collectives of training: its own communicator (or keys of the TCP store), waits that sleep,
// and failures that come back as a Status, so that a failed save does not stop training. After a timeout it
// can be used again: messages carry the number of the operation, and those of abandoned operations are
// dropped.
//
// Every rank calls the same operations in the same order, one thread at a time per ControlPlane.
// Errors: Aborted if a rank does not take part within the deadline (named, with where it was last seen);
// InvalidArgument for blobs of 2 GiB or more.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

class Mailbox;

class ControlPlane {
 public:
  // `timeout_seconds` is for each operation. Transport::NewControlPlane makes the first one.
  ControlPlane(std::shared_ptr<Mailbox> mailbox, double timeout_seconds);
  ~ControlPlane();

  int rank() const;
  int size() const;

  // Another one with its own communicator, for another thread. Collective; main thread, before that thread
  // starts.
  std::unique_ptr<ControlPlane> Create(const std::string& name) const;

  // Likewise, a separate mailbox over the same ranks.
  std::shared_ptr<Mailbox> NewMailbox(const std::string& name) const;
  double timeout_seconds() const { return timeout_seconds_; }

  // On rank 0 all blobs by rank; elsewhere an empty vector, as soon as the blob has left.
  Result<std::vector<std::string>> GatherToRoot(std::string blob, std::string_view what);

  // Rank 0's blob. Rank 0 returns once it has left.
  Result<std::string> BroadcastFromRoot(std::string blob, std::string_view what);

 private:
  Result<std::string> Receive(int from, uint64_t sequence, double deadline, std::string_view what);
  Status Flush(double deadline, std::string_view what);

  std::shared_ptr<Mailbox> mailbox_;
  double timeout_seconds_;
  uint64_t sequence_ = 0;
  std::vector<std::string> early_;  // by rank: a message of a later operation that came before its time
};

}  // namespace cairn
