// Which process of one parallel launch this is. The processes make one step together (a reshape, a save of
// another program's state), or share an archive run.
//
// mpirun, srun and other PMI launchers tell each process its rank by environment variables; no MPI library is
// loaded. Ranks meet in a directory (rendezvous.h).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/base/stopwatch.h"

namespace cairn {

// What the job's own channel, if it has one, tells a rank in addition to the files of a rendezvous: at once,
// and also if this host does not see the directory.
struct TeamNews {
  std::optional<std::chrono::steady_clock::time_point> opened = {};  // since when rank 0 is known to be ready
  bool published = false;
  Status failed = {};  // Aborted with the first failure
};

struct RankTeam {
  int rank = 0;
  int size = 1;
  // Names this launch. A launcher may use a name again: for a requeued job, or in a new container. Empty:
  // unnamed.
  std::string launch;
  bool once = false;  // `launch` was drawn at random for this rendezvous
  Patience start_patience = [] { return std::chrono::seconds(120); };  // until rank 0 begins
  // With ranks that make no progress.
  Patience patience = [] { return std::chrono::minutes(30); };
  std::function<TeamNews()> news = [] { return TeamNews(); };

  using GetEnv = std::function<const char*(const char*)>;  // as std::getenv
  // Reads OMPI_COMM_WORLD_*, PMI_* or a Slurm step's variables; a single rank if none is set.
  static RankTeam FromEnvironment(const GetEnv& get_env);
  // Reads torchrun's variables. Every command that a rank of a training starts inherits them although it runs
  // by itself, so only commands that run before a training read them.
  static std::optional<RankTeam> FromTorchrun(const GetEnv& get_env);
  bool leads() const { return rank == 0; }
  bool alone() const { return size == 1; }
};

}  // namespace cairn
