#include "runtime/control/launchers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace cairn {
namespace {

// The processes that a launcher started, and the number of this one. Not in the table: SLURM_NTASKS and LSF's
// LSB_DJOB_NUMPROC count the slots of an allocation, which a batch script has for itself.
struct Launcher {
  std::string_view name;
  const char* size;
  const char* rank;
  std::string_view first_rank = "0";
};
constexpr Launcher kLaunchers[] = {
    // torch.distributed's env:// rendezvous; torchrun and DeepSpeed's launcher set all of them.
    {"torchrun", "WORLD_SIZE", "RANK"},
    {"torchrun", "LOCAL_WORLD_SIZE", "LOCAL_RANK"},
    // docs.open-mpi.org, "Environment variables set for MPI applications".
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    // PMIx has no variable for the size; srun --mpi=pmix, jsrun and Open MPI's mpirun set the rank.
    {"a PMIx launcher", "", "PMIX_RANK"},
    // srun(1), "Output environment variables"; a batch script has SLURM_PROCID=0 and no step of its own.
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
    // PMI-1: Hydra (mpiexec of MPICH and of Intel MPI), srun --mpi=pmi2, PALS.
    {"the mpiexec of MPICH, Intel MPI or PALS", "PMI_SIZE", "PMI_RANK"},
    // Hydra, for the processes of this host.
    {"the mpiexec of MPICH or Intel MPI", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    // MVAPICH2's user guide, mpirun_rsh.
    {"MVAPICH's mpirun_rsh", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
    // HPE's PALS sets no size of the whole but PMI_SIZE (Slurm's mpi/cray_shasta does as PALS).
    {"PALS", "PALS_LOCAL_SIZE", "PALS_RANKID"},
    // IBM's Job Step Manager, on LSF.
    {"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"},
    // LSF's blaunch counts its tasks from 1 (Open MPI's ess/lsf).
    {"blaunch", "", "LSF_PM_TASKID", "1"},
    // flux-core, src/shell/task.c.
    {"flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
};
constexpr const char* kTorchrunVariables[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

// Unset is empty.
std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Any number counts as that of one process among several, unless it is known to mean a single process.
// torch's old launcher had LOCAL_RANK=-1 for a single process.
bool SizeClaims(std::string_view size) { return !size.empty() && size != "0" && size != "1"; }
bool RankClaims(std::string_view rank, std::string_view first) {
  return !rank.empty() && rank != "-1" && rank != "0" && rank != first;
}

std::string MissingTorchrunVariables() {
  std::vector<std::string_view> missing;
  std::ranges::copy_if(kTorchrunVariables, std::back_inserter(missing),
                       [](const char* name) { return std::getenv(name) == nullptr; });
  return fmt::format("{} {} not set", fmt::join(missing, " and "), missing.size() == 1 ? "is" : "are");
}

}  // namespace

bool HasTorchrunVariables() {
  return std::ranges::all_of(kTorchrunVariables,
                             [](const char* name) { return std::getenv(name) != nullptr; });
}

int RanksOnThisHost() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS"})
    if (const char* value = std::getenv(name)) return std::max(1, std::atoi(value));
  return 1;
}

std::string WhyNotAlone() {
  std::vector<std::string_view> variables;  // all that say so, to unset
  const Launcher* launcher = nullptr;
  for (const Launcher& row : kLaunchers) {
    const size_t before = variables.size();
    if (SizeClaims(Variable(row.size))) variables.emplace_back(row.size);
    if (RankClaims(Variable(row.rank), row.first_rank)) variables.emplace_back(row.rank);
    if (!launcher && variables.size() > before) launcher = &row;
  }
  if (!launcher) return "";
  const bool torchrun = launcher->name == "torchrun";
  return fmt::format(
      "{}={} shows that {} started several processes, but {}; start them with Open MPI's mpirun, srun "
      "--mpi=pmix or torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each; to train only "
      "in this process, unset {}",
      variables.front(), Variable(std::string(variables.front()).c_str()), launcher->name,
      torchrun && !HasTorchrunVariables() ? MissingTorchrunVariables() : "this one cannot find the others",
      fmt::join(variables, " "));
}

}  // namespace cairn
