// The ranks of a training (ckpt/job/job_ranks.h), whose messages go through a mailbox of its launcher.
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

#include "ckpt/job/job_ranks.h"

namespace cairn {

class Mailbox;

class ControlPlane final : public JobRanks {
 public:
  // `timeout_seconds` is for each operation. Transport::NewControlPlane makes the first one.
  ControlPlane(std::shared_ptr<Mailbox> mailbox, double timeout_seconds);
  ~ControlPlane() override;

  int rank() const override;
  int size() const override;
  std::string NameOf(int rank) const override;

  // Another one with its own communicator, for another thread, with `patience` times the timeout. Collective;
  // main thread, before that thread starts.
  std::unique_ptr<ControlPlane> Create(const std::string& name, double patience = 1) const;

  double timeout_seconds() const { return timeout_seconds_; }

  Result<std::vector<std::string>> GatherToRoot(std::string blob, std::string_view what) override;
  Result<std::string> BroadcastFromRoot(std::string blob, std::string_view what) override;

 private:
  Result<std::string> Receive(int from, uint64_t sequence, double deadline, std::string_view what);
  Status Flush(double deadline, std::string_view what);

  std::shared_ptr<Mailbox> mailbox_;
  double timeout_seconds_;
  uint64_t sequence_ = 0;
  std::vector<std::string> early_;  // by rank: a message of a later operation that came before its time
};

}  // namespace cairn
