// The world of torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
#include <c10/util/Exception.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "runtime/comm/store_mailbox.h"
#include "runtime/comm/world.h"

namespace cairn {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int IntVariable(const char* name, int lowest, int highest) {
  const std::string_view text = Variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK(error == std::errc() && end == text.data() + text.size() && value >= lowest && value <= highest,
              "environment variable ", name, "='", text, "' is not a number from ", lowest, " to ", highest,
              "; start the ranks with torchrun, or unset RANK and WORLD_SIZE");
  return value;
}

// Under torchrun its agent serves the store, and a restarted job finds the keys of its first life in it.
c10::intrusive_ptr<c10d::Store> Connect(int rank, double timeout_seconds) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(IntVariable("MASTER_PORT", 1, 65535));
  options.isServer = rank == 0 && Variable("TORCHELASTIC_USE_AGENT_STORE") != "True";
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  auto store = c10::make_intrusive<c10d::TCPStore>(std::string(Variable("MASTER_ADDR")), options);
  const std::string attempt(Variable("TORCHELASTIC_RESTART_COUNT"));
  return c10::make_intrusive<c10d::PrefixStore>("cairn" + attempt, store);
}

class StoreWorld : public World {
 public:
  explicit StoreWorld(double timeout_seconds) {
    size_ = IntVariable("WORLD_SIZE", 1, 1 << 20);
    rank_ = IntVariable("RANK", 0, size_ - 1);
    local_rank_ = Variable("LOCAL_RANK").empty() ? 0 : IntVariable("LOCAL_RANK", 0, size_ - 1);
    store_ = Connect(rank_, timeout_seconds);
  }

  c10::intrusive_ptr<c10d::Backend> NewBackend(const std::string& /*name*/,
                                               const std::vector<int>& members) override {
    TORCH_CHECK(members.size() == 1,
                "ranks on CPUs meet through MPI, but torchrun's variables started this one; start it with "
                "mpirun or srun --mpi=pmix, or train with --device cuda");
    return {};
  }

  std::shared_ptr<Mailbox> NewMailbox(const std::string& name) override {
    return std::make_shared<StoreMailbox>(store_, "mail/" + name, rank_, size_);
  }

  c10::intrusive_ptr<c10d::Store> store() const override { return store_; }

  std::function<void(int)> Aborter() const override { return {}; }  // the watchdogs of a host stop each other

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::unique_ptr<World> MakeStoreWorld(double timeout_seconds) {
  return std::make_unique<StoreWorld>(timeout_seconds);
}

}  // namespace cairn
