// The ranks of a job as threads of this process, which reach each other over TCP as helpers do.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/job/peer_ranks.h"

namespace cairn {

class PeerWorld {
 public:
  explicit PeerWorld(int size, double timeout_seconds = 60, FileSystem& fs = FileSystem::Posix()) {
    PeerFiles::Job job{.secret = PeerFiles::NewSecret()};
    for (int rank = 0; rank < size; ++rank) {
      peers_.push_back(std::make_unique<PeerFiles>(fs, timeout_seconds, [] {}));
      job.places.push_back(peers_.back()->Listen().value());
      job.names.push_back("rank " + std::to_string(rank));
    }
    for (job.rank = 0; job.rank < size; ++job.rank)
      peers_[job.rank]->Join(job, std::make_unique<PeerRanks>(*peers_[job.rank], "sessions",
                                                              [=] { return 10 * timeout_seconds; }));
  }

  // Runs `body(ranks, peers)` as every rank.
  template <typename Body>
  void Run(const Body& body) {
    const std::string channel = "run " + std::to_string(++runs_);
    std::vector<std::thread> threads;
    for (const auto& peers : peers_)
      threads.emplace_back([&] {
        PeerRanks ranks(*peers, channel, [] { return 60; });
        body(ranks, *peers);
      });
    for (std::thread& thread : threads) thread.join();
  }

  const PeerFiles::Job& job() const { return peers_[0]->job(); }

 private:
  std::vector<std::unique_ptr<PeerFiles>> peers_;
  int runs_ = 0;
};

}  // namespace cairn
