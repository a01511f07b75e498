#include "runtime/control/launchers.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
namespace {

using testing::EndsWith;
using testing::StartsWith;

// Sets variables for a scope, in which no other variables of launchers are set.
class ScopedVariables {
 public:
  explicit ScopedVariables(const std::vector<std::pair<const char*, const char*>>& variables)
      : variables_(variables) {
    for (const auto& [name, value] : variables_) setenv(name, value, 1);
  }
  ~ScopedVariables() {
    for (const auto& [name, value] : variables_) unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, const char*>> variables_;
};

std::string WhyNotAloneWith(const std::vector<std::pair<const char*, const char*>>& variables) {
  const ScopedVariables scope(variables);
  return WhyNotAlone();
}

TEST(LaunchersTest, NamesVariablesThatMeanSeveralProcesses) {
  for (const char* size :
       {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE",
        "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE", "PALS_LOCAL_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE"}) {
    EXPECT_THAT(WhyNotAloneWith({{size, "2"}}), StartsWith(fmt::format("{}=2 shows", size)));
    EXPECT_EQ(WhyNotAloneWith({{size, "1"}}), "");
    EXPECT_EQ(WhyNotAloneWith({{size, ""}}), "");
  }
  for (const char* rank :
       {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "PMI_RANK",
        "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK"}) {
    EXPECT_THAT(WhyNotAloneWith({{rank, "1"}}), StartsWith(fmt::format("{}=1 shows", rank)));
    EXPECT_EQ(WhyNotAloneWith({{rank, "0"}}), "");
  }
  EXPECT_EQ(WhyNotAloneWith({{"LOCAL_RANK", "-1"}}), "");
  EXPECT_EQ(WhyNotAloneWith({{"LSF_PM_TASKID", "1"}}), "");  // counts from 1
  EXPECT_THAT(WhyNotAloneWith({{"LSF_PM_TASKID", "2"}}), StartsWith("LSF_PM_TASKID=2 shows"));
}

// sbatch gives the script of a job of 8 tasks these; it starts ranks by --nproc-per-node, or trains on one.
TEST(LaunchersTest, ABatchScriptMayTrainOnOneRank) {
  EXPECT_EQ(WhyNotAloneWith({{"SLURM_JOB_ID", "200505"},
                             {"SLURM_NTASKS", "8"},
                             {"SLURM_NPROCS", "8"},
                             {"SLURM_NTASKS_PER_NODE", "8"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_NODEID", "0"}}),
            "");
  EXPECT_EQ(WhyNotAloneWith({{"LSB_JOBID", "7"}, {"LSB_DJOB_NUMPROC", "8"}}), "");
}

// MPICH's mpiexec -n 2.
TEST(LaunchersTest, NamesAllVariablesToUnset) {
  EXPECT_THAT(WhyNotAloneWith(
                  {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}}),
              EndsWith("unset PMI_SIZE PMI_RANK MPI_LOCALNRANKS MPI_LOCALRANKID"));
}

}  // namespace
}  // namespace cairn
