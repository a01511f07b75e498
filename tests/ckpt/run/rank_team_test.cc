#include "ckpt/run/rank_team.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace cairn {
namespace {

TEST(RankTeamTest, RecognisesLaunchersByTheirVariables) {
  const auto team = [](std::map<std::string, std::string> env) {
    return RankTeam::FromEnvironment([env = std::move(env)](const char* name) -> const char* {
      const auto found = env.find(name);
      return found == env.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_TRUE(team({}).alone());
  EXPECT_EQ(team({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}}).rank, 2);
  EXPECT_EQ(team({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}).size, 3);
  EXPECT_EQ(team({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}).rank, 1);
  // A batch script that starts the command directly is one process, however many tasks its job has.
  EXPECT_TRUE(team({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).alone());
  EXPECT_TRUE(team({{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}).alone());
  EXPECT_EQ(team({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"PBS_JOBID", "7.host"}}).launch, "PBS job 7.host");
}

// A command that a rank of a training starts inherits them too, and must not wait for the others.
TEST(RankTeamTest, TorchrunIsALauncherOnlyOnRequest) {
  std::map<std::string, std::string> env = {
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
  const auto get_env = [&](const char* name) {
    const auto found = env.find(name);
    return found == env.end() ? nullptr : found->second.c_str();
  };
  EXPECT_FALSE(RankTeam::FromTorchrun(get_env)) << "another launcher set them";
  env["TORCHELASTIC_RUN_ID"] = "none";
  const std::optional<RankTeam> team = RankTeam::FromTorchrun(get_env);
  ASSERT_TRUE(team);
  EXPECT_EQ(team->rank, 3);
  EXPECT_EQ(team->size, 4);
  EXPECT_EQ(team->launch, "none n1 29500");
  EXPECT_TRUE(RankTeam::FromEnvironment(get_env).alone());
}

// Slurm starts a requeued job with the same job and step numbers.
TEST(RankTeamTest, ARequeuedJobIsAnotherLaunch) {
  const auto launch = [](const char* restarts) {
    return RankTeam::FromEnvironment([=](const char* asked) -> const char* {
             const std::string_view name = asked;
             if (name == "SLURM_RESTART_COUNT") return restarts;
             if (name == "SLURM_PROCID" || name == "SLURM_STEP_ID") return "0";
             return name == "SLURM_STEP_NUM_TASKS" || name == "SLURM_JOB_ID" ? "2" : nullptr;
           })
        .launch;
  };
  const std::set<std::string> names = {launch(nullptr), launch("1"), launch("2")};
  EXPECT_EQ(names.size(), 3U);
}

}  // namespace
}  // namespace cairn
