// Mailbox over a c10d::Store: a message is a few keys, which its receiver deletes.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "runtime/control/mailbox.h"

namespace cairn {

class StoreMailbox : public Mailbox {
 public:
  // Takes a connection of its own. All keys begin with `prefix`, which no other mailbox of the job has.
  StoreMailbox(const c10::intrusive_ptr<c10d::Store>& store, std::string prefix, int rank, int size);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void Post(int to, std::string message) override;
  bool Delivered() override { return true; }
  std::optional<std::string> Poll(int from) override;
  std::shared_ptr<Mailbox> Duplicate(const std::string& name) override;

 private:
  std::string Key(int from, int to, uint64_t number, size_t piece) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  int rank_;
  int size_;
  std::vector<uint64_t> sent_;      // messages, by receiver
  std::vector<uint64_t> received_;  // messages, by sender
};

}  // namespace cairn
