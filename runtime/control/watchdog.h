// The watchdog: a deadline for every wait, and a line that says who is missing.
//
// Each operation is a Scope. A thread of its own looks at the oldest one; when it is older than the deadline
// it writes one line to stderr (rank, host, step, operation, tensor, group, and from the status board the
// ranks that have not arrived, each with its place). Then it stops all ranks with kExitLostPeer within 10 s,
// even those that are stopped or hang in MPI. It does not depend on the thread that waits, so a wait inside
// MPI or CUDA is covered too. Time in which this process was suspended as a whole (SIGSTOP, a scheduler's
// suspension) does not count.
//
// It also drives the heartbeat between the hosts: the line names the host that fell silent first, if one did,
// not those that wait for it.
//
// Process-wide, because the ranks of a job are processes. Without Start() everything here does nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/exit_code.h"

namespace cairn {

class Heartbeat;
class StatusBoard;

class Watchdog {
 public:
  struct Options {
    int rank = 0;
    std::string host;
    double timeout_seconds = 600;
    std::shared_ptr<StatusBoard> board;
    std::shared_ptr<Heartbeat> heartbeat;   // of the first rank of a host; null: this rank has none
    std::function<void(int status)> abort;  // asks the launcher to stop all ranks; may hang
  };

  static void Start(Options options);
  static void Stop();  // before the transport closes down; waits for the thread

  // The training step that later scopes belong to.
  static void SetStep(int64_t step);
  static double timeout_seconds();

  // "rank 3 (host a)"; "rank 3" if all ranks are on one host.
  static std::string Name(int world_rank);
  // "rank 3 (pid 77, host a), last seen in step 17, for 12.0 s in all-reduce of dp/grad bucket 2"
  static std::string Describe(int world_rank);

  // Stops all ranks non-zero: through the launcher, and within seconds by force. For errors that other ranks
  // cannot know of; leaving main() instead would let them wait for the deadline.
  [[noreturn]] static void StopAllRanks(int status = kExitLostPeer);

  // An operation and the ranks that it needs.
  struct Operation {
    std::string_view name;    // "all-reduce"
    std::string_view tensor;  // "grad bucket 2"
    std::string_view group;   // "dp"
    int group_id = -1;        // below StatusBoard::kMaxGroups; -1: not counted on the board
    uint64_t sequence = 0;    // of collectives in the group, from 1; 0: a message
    std::vector<int> peers;   // world ranks that take part
    bool fatal = true;        // false: for the board only, whoever waits keeps the time
  };

  // An operation in progress. The deadline runs from its construction.
  class Scope {
   public:
    explicit Scope(const Operation& operation);
    Scope(Scope&&) noexcept;
    Scope& operator=(Scope&&) = delete;
    ~Scope();

    struct Entry;  // the watchdog's own

   private:
    std::unique_ptr<Entry> entry_;
  };

  // Publishes that this rank has started collective `sequence` of the group, without waiting for it yet.
  static void Arrive(int group_id, uint64_t sequence);

  // Keeps the scope open until `done`, which the watchdog's thread asks: for work that no thread waits for on
  // the CPU.
  static void Adopt(Scope scope, std::function<bool()> done);
};

}  // namespace cairn
