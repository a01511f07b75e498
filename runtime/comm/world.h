// The ranks that a launcher started together, as Transport uses them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace cairn {

class Mailbox;

class World {
 public:
  virtual ~World() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }

  // All collective over the world, in the same order on all ranks.
  // The backend for CPU tensors of the group `members`; null for a group of one.
  virtual c10::intrusive_ptr<c10d::Backend> NewBackend(const std::string& name,
                                                       const std::vector<int>& members) = 0;
  virtual std::shared_ptr<Mailbox> NewMailbox(const std::string& name) = 0;
  // A store that all ranks reach, for NCCL's rendezvous; null if the launcher has none.
  virtual c10::intrusive_ptr<c10d::Store> store() const;

  // Asks the launcher to stop all ranks. May be called at any time from any thread, and may hang; may be
  // empty.
  virtual std::function<void(int status)> Aborter() const = 0;

 protected:
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
};

std::unique_ptr<World> MakeMpiWorld();
std::unique_ptr<World> MakeStoreWorld(double timeout_seconds);  // from torchrun's variables
std::unique_ptr<World> MakeLoneWorld();

}  // namespace cairn
