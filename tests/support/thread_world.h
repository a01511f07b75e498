// Ranks as threads of this process, with mailboxes between them, so that ThreadSanitizer can watch them.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "runtime/control/mailbox.h"

namespace cairn {

class ThreadWorld {
 public:
  explicit ThreadWorld(int size) : size_(size) {}

  // Runs `body(mailbox)` as every rank.
  template <typename Body>
  void Run(const Body& body) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size_; ++rank)
      ranks.emplace_back([&, rank] { body(std::make_shared<Box>(*this, rank, "")); });
    for (std::thread& rank : ranks) rank.join();
  }

 private:
  class Box final : public Mailbox {
   public:
    Box(ThreadWorld& world, int rank, std::string name)
        : world_(world), rank_(rank), name_(std::move(name)) {}
    int rank() const override { return rank_; }
    int size() const override { return world_.size_; }
    void Post(int to, std::string message) override {
      const std::lock_guard lock(world_.mutex_);
      world_.queues_[{name_, rank_, to}].push_back(std::move(message));
    }
    bool Delivered() override { return true; }
    std::optional<std::string> Poll(int from) override {
      const std::lock_guard lock(world_.mutex_);
      auto& queue = world_.queues_[{name_, from, rank_}];
      if (queue.empty()) return std::nullopt;
      std::string message = std::move(queue.front());
      queue.pop_front();
      return message;
    }
    std::shared_ptr<Mailbox> Duplicate(const std::string& name) override {
      return std::make_shared<Box>(world_, rank_, name_ + "/" + name + std::to_string(duplicates_++));
    }

   private:
    ThreadWorld& world_;
    const int rank_;
    const std::string name_;
    int duplicates_ = 0;  // collective: the same number on all ranks
  };

  const int size_;
  std::mutex mutex_;
  std::map<std::tuple<std::string, int, int>, std::deque<std::string>> queues_;  // name, from, to
};

}  // namespace cairn
