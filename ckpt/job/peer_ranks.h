// The ranks of a job whose helpers reach each other only as PeerFiles does (peer_files.h): a message waits at
// the rank that sends it, and the others fetch it.
#pragma once

#include <string>
#include <vector>

#include "ckpt/job/peer_files.h"

namespace cairn {

class PeerRanks final : public JobRanks {
 public:
  // How long an operation waits for another rank; called again and again, because it may change.
  using Seconds = std::function<double()>;

  // `channel`: a name that no other one over `peers` has; each of them is used by one thread. `peers` must
  // outlive it, and have joined before the first operation.
  PeerRanks(PeerFiles& peers, std::string channel, Seconds seconds)
      : peers_(peers), channel_(std::move(channel)), seconds_(std::move(seconds)) {}

  int rank() const override { return peers_.rank(); }
  int size() const override { return peers_.size(); }
  std::string NameOf(int rank) const override { return peers_.job().names[rank]; }
  Result<std::vector<std::string>> GatherToRoot(std::string blob, std::string_view what) override;
  Result<std::string> BroadcastFromRoot(std::string blob, std::string_view what) override;

 private:
  std::string NextName() { return fmt::format("{} {}", channel_, ++sequence_); }

  PeerFiles& peers_;
  const std::string channel_;
  const Seconds seconds_;
  uint64_t sequence_ = 0;  // of operations, the same on all ranks
};

}  // namespace cairn
