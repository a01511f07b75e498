// The world of torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/control/mailbox.h"

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

constexpr size_t kPieceBytes = size_t{4} << 20;  // TCPStore refuses values of more than 8 MiB
using Bytes = std::vector<uint8_t>;

// Mailbox over a c10d::Store: a message is a few keys, which its receiver deletes. The first piece is set
// last, and starts with the number of pieces: a receiver that finds it finds all of them.
class StoreMailbox : public Mailbox {
 public:
  // Opens a separate connection. All keys begin with `prefix`, which no other mailbox of the job has.
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
                "ranks on CPUs communicate through MPI, but this one was started by torchrun's variables; "
                "start it with mpirun or srun --mpi=pmix, or train with --device cuda");
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
