// The current work of each rank on this host, in memory that they share.
//
// Every rank publishes its step, its operations in progress and the number of the last collective it started
// in each group, with a few stores. Nothing here waits: the board is read only to report who is missing. It
// also carries one flag, "stopping", so that a host's ranks end together and one of them speaks, and when
// this host last heard each other host (heartbeat.h). A host is called by its first rank.
//
// The memory is a file in /dev/shm that is unlinked as soon as all ranks have mapped it. If that is
// impossible, the board shows only this rank. Times are CLOCK_MONOTONIC, which the processes of a host share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

class StatusBoard {
 public:
  static constexpr int kMaxGroups = 32;
  static constexpr int kNoSlot = -1;

  // `key` is the job's own; `hosts` by rank.
  static Result<std::unique_ptr<StatusBoard>> Open(const std::string& key, int rank,
                                                   std::vector<std::string> hosts);
  // A board that other processes do not see.
  static std::unique_ptr<StatusBoard> Private(int rank, std::vector<std::string> hosts);
  ~StatusBoard();
  StatusBoard(const StatusBoard&) = delete;
  StatusBoard& operator=(const StatusBoard&) = delete;

  // Removes the file's name; after all ranks have opened it.
  void Unlink();

  // This rank's side.
  void SetStep(int64_t step);
  int64_t step() const;
  void Arrive(int group_id, uint64_t sequence);
  int Enter(std::string_view text);  // a slot, or kNoSlot when all are taken
  void Leave(int slot);
  void Finish();  // this rank leaves in good order

  // Sets the flag; true for the first rank of this host that does.
  bool ClaimStopping();
  bool stopping() const;

  // Sets, for each rank, the first rank of its host. Call it before the methods below.
  void SetFirstRanks(std::vector<int> first_ranks, double silence_limit);
  // Seconds since this host heard that of `first_rank`, or since its own first rank listened. Never: nullopt.
  std::optional<double> Silence(int first_rank) const;
  void Hear(int first_rank);  // this host heard it just now
  void ForgiveSilence(
      double seconds);  // all of them later than noted: this host was suspended and heard nobody
  const std::vector<int>& first_ranks() const { return first_ranks_; }  // by rank; empty: no heartbeat
  double silence_limit() const { return silence_limit_; }  // seconds after which a host counts as silent

  // Every rank's side.
  int size() const { return static_cast<int>(hosts_.size()); }
  bool Knows(int rank) const;  // it has published on this host
  bool Arrived(int rank, int group_id, uint64_t sequence) const;
  bool Waits(int rank) const;   // it is in some operation
  bool Died(int rank) const;    // its process is gone without Finish()
  bool Halted(int rank) const;  // its process is stopped by a signal or a debugger
  const std::string& host(int rank) const { return hosts_[rank]; }
  // "rank 3 (host a)"; "rank 3" if all ranks are on one host.
  std::string Name(int rank) const;
  // "rank 3 (pid 77, host a, stopped by a signal), last seen in step 17, for 12.0 s in all-reduce of dp/grad
  // bucket 2"
  std::string Describe(int rank) const;

  // SIGKILL for the other ranks on this host that are still there.
  void KillPeers() const;

 private:
  struct Slot;
  struct Row;
  struct Page;
  StatusBoard(int rank, std::vector<std::string> hosts, void* memory, std::string path);
  Row& row(int rank) const;

  int rank_;
  std::vector<std::string> hosts_;
  std::vector<int> first_ranks_;
  double silence_limit_ = 0;
  Page* page_;
  std::string path_;  // empty once unlinked
};

}  // namespace cairn
