#include "ckpt/run/rank_team.h"

#include <charconv>
#include <string_view>

#include "ckpt/base/this_process.h"

namespace cairn {
namespace {

int Number(const char* text) {
  int value = -1;
  if (text != nullptr) std::from_chars(text, text + std::string_view(text).size(), value);
  return value;
}

}  // namespace

std::optional<RankTeam> RankTeam::FromTorchrun(const GetEnv& get_env) {
  const int rank = Number(get_env("RANK")), size = Number(get_env("WORLD_SIZE"));
  const char* const id = get_env("TORCHELASTIC_RUN_ID");  // "none" unless the user names the launch
  if (size < 1 || rank < 0 || rank >= size || id == nullptr) return std::nullopt;
  RankTeam team{.rank = rank, .size = size, .launch = id};
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    if (const char* place = get_env(name)) team.launch += fmt::format(" {}", place);
  return team;
}

RankTeam RankTeam::FromEnvironment(const GetEnv& get_env) {
  struct Launcher {
    const char *rank, *size, *launch;
  };
  for (const Launcher& names : {Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"},
                                Launcher{"PMI_RANK", "PMI_SIZE", "PMI_JOBID"},
                                // Only srun sets the size of a step; a batch script by itself is one process.
                                Launcher{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"}}) {
    const int rank = Number(get_env(names.rank)), size = Number(get_env(names.size));
    if (size < 1 || rank < 0 || rank >= size) continue;
    RankTeam team{.rank = rank, .size = size};
    for (const char* name :
         {names.launch, "OMPI_MCA_ess_base_jobid", "PMI_PORT", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"})
      if (const char* id = get_env(name)) team.launch += fmt::format("{}={} ", name, id);
    // The batch job is the last resort: a job may launch several times.
    if (team.launch.empty()) team.launch = BatchJob(get_env);
    return team;
  }
  return {};
}

}  // namespace cairn
