// The processes of one parallel launch that make one step together (a reshape, a save of another program's
// state). They meet by small files in the step's partial directory, which all of them can see.
//
// mpirun, srun and other PMI launchers tell each process its rank by environment variables; no MPI library is
// loaded. Rank 0 makes the directory and publishes the step. Every rank leaves a file when it has finished;
// the file of the first failure ends all other ranks. Waiting has a deadline, which any progress of a peer
// renews: a new or larger file. A waiting rank lists directories (ckpt/io/fresh_names.h), and believes that
// one is gone only when no cache of names can still hide it, or the step that it has become.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "ckpt/base/stopwatch.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// What the job's own channel, if it has one, reports to a rank in addition to the files: at once, and even if
// this host does not see the directory.
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
  bool once = false;  // `launch` was drawn at random for this meeting
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

// Rank 0 says that `directory` is ready for this launch. It waits until all ranks have arrived, unless the
// team meets only `once`. Errors: InvalidArgument if nothing identifies the launch; Aborted naming the ranks
// that did not arrive within `patience`.
Status OpenTeamRoom(FileSystem& fs, const std::string& directory, const RankTeam& team);
// The other ranks wait for that. They never enter a room that a killed launch left, and write nothing into
// its directory. Errors: Aborted at the deadline, or if this host does not see what rank 0 has opened.
Status AwaitTeamRoom(FileSystem& fs, const std::string& directory, const RankTeam& team);

// OK unless a rank has failed or the directory is gone. Errors: that rank's failure; Aborted of a lost one.
Status CheckTeam(FileSystem& fs, const std::string& directory, const RankTeam& team);
// This rank has finished and reports the bytes that it read of the source, or it has failed and leaves.
void LeaveTeam(FileSystem& fs, const std::string& directory, const RankTeam& team, const Status& outcome,
               uint64_t bytes_read);
// Rank 0 waits until every other rank has finished, and gets the bytes that they read in all.
// Errors: those of CheckTeam(); Aborted without progress for long, naming the ranks that are missing.
Result<uint64_t> AwaitTeam(FileSystem& fs, const std::string& directory, const RankTeam& team);
// After a failure rank 0 waits for a while until all have left: then no rank writes into the directory, or
// looks for the reason in it.
void DismissTeam(FileSystem& fs, const std::string& directory, const RankTeam& team);
// The other ranks wait until rank 0 has published the step, as `published` finds, or the news say. Errors:
// those of CheckTeam(); Aborted after `patience`.
Status AwaitPublished(FileSystem& fs, const std::string& directory, const RankTeam& team,
                      const Patience& patience, const std::function<bool()>& published);

// True for the names that a team leaves in the directory.
bool IsTeamFileName(std::string_view name);

}  // namespace cairn
