// Lets the ranks of a job find each other.
//
// Launch() looks at the environment: Open MPI's, PMIx's or Slurm's variables mean MPI; RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT (torchrun) a TCP store, which carries messages and NCCL's rendezvous; without
// any of them it is a world of one, unless another launcher's variables say that it started several
// processes. Collectives run over MPI on CPUs, and with device "cuda" over NCCL, from a module that is then
// loaded.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/process_group.h"
#include "runtime/control/control_plane.h"

namespace c10d {
class Store;
}

namespace cairn {

class NcclModule;
class World;

struct LaunchOptions {
  std::string device = "cpu";    // or "cuda"
  double timeout_seconds = 600;  // deadline of every collective and message
};

class Transport {
 public:
  // Joins the world and starts the watchdog. Call it first in main: on "cuda" it loads the module that
  // libtorch needs at its first use of a device. A rank that fails later must call Watchdog::StopAllRanks, or
  // the others wait in vain until the deadline. Errors: c10::Error if the variables contradict each other, or
  // name other processes that cannot be reached, or if device "cuda" finds no GPU.
  explicit Transport(const LaunchOptions& options);
  // Waits for the other ranks, so that all leave together; not while an exception unwinds the stack. Threads
  // that use a group or a control plane must have ended; the objects may outlive it, but not main.
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;                                // on this host
  const std::string& device() const { return device_; }  // "cpu" or "cuda:N"

  // The group of `world_ranks`, in that order. Collective over the world: all ranks call it with the same
  // name, each with the group that it belongs to (at least itself); the groups of one call are disjoint.
  ProcessGroup Split(const std::string& name, const std::vector<int>& world_ranks);

  // Collective over the world. The deadline of its operations is the options'.
  std::unique_ptr<ControlPlane> NewControlPlane(const std::string& name);

 private:
  void StartWatchdog();  // and the status board, which all ranks map, and the heartbeat
  void LoadNccl();
  c10::intrusive_ptr<c10d::Backend> NewBackend(const std::string& name, const std::vector<int>& members);

  double timeout_seconds_;
  std::string device_;
  std::unique_ptr<World> world_;
  std::unique_ptr<ControlPlane> plane_;  // for start and end
  std::unique_ptr<NcclModule> nccl_;
  c10::intrusive_ptr<c10d::Store> store_;  // nccl_'s rendezvous
  int groups_ = 0;
};

inline std::unique_ptr<Transport> Launch(const LaunchOptions& options) {
  return std::make_unique<Transport>(options);
}

}  // namespace cairn
