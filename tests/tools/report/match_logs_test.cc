#include "tools/report/match_logs.h"

#include <gtest/gtest.h>

#include "tests/tools/report/sample_logs.h"

namespace cairn {
namespace {

JobScript Script(const std::string& path, const std::string& job_name, const std::string& output, int pp) {
  return ReadJobScript(
      fmt::format("#!/bin/bash\n#SBATCH --job-name={}\n#SBATCH --output={}\n#SBATCH --nodes=16 # of 4\n"
                  "export TP=4\nPP=\"{}\"  # stages\n"
                  "CMD=\"--tensor-model-parallel-size $TP --pipeline-model-parallel-size ${{PP}} "
                  "--hidden-size 14336 \"\n"
                  "srun python x.py \\\n  --num-layers 72 $CMD\n",
                  job_name, output, pp),
      path);
}

TrainingLog LogNamed(const std::string& name, int pp) {
  return ReadTrainingText(Dump(4, pp, 4 * pp, 2, 2048) + NewLine(1, 10, 2), name);
}

TEST(MatchLogsTest, ExpandsVariablesInTheFlagsOfAScript) {
  const JobScript script = Script("jobs/a.slurm", "big", "%x-%j.out", 16);
  EXPECT_EQ(script.job_name, "big");
  EXPECT_EQ(script.config.nodes, 16);
  EXPECT_EQ(script.config.tp, 4);
  EXPECT_EQ(script.config.pp, 16);
  EXPECT_EQ(script.config.hidden, 14336);
  EXPECT_EQ(script.config.layers, 72);
}

TEST(MatchLogsTest, MatchesSlurmsFilePatterns) {
  EXPECT_TRUE(MatchesOutput("logs/big-123.out", "x/%x-%j.out", "big"));
  EXPECT_TRUE(MatchesOutput("big-123_4.out", "%x-%A_%4a.out", "big"));
  EXPECT_FALSE(MatchesOutput("small-123.out", "%x-%j.out", "big"));
  EXPECT_FALSE(MatchesOutput("big-123.err", "%x-%j.out", "big"));
}

TEST(MatchLogsTest, LogsFindTheirScriptsAndNames) {
  const std::vector<JobScript> scripts = {Script("jobs/pp16.slurm", "big", "logs/%x-%j.out", 16),
                                          Script("jobs/pp8.slurm", "other", "slurm-%j.out", 8)};
  const auto matches = MatchLogs({LogNamed("logs/big-1234.out", 16), LogNamed("slurm-777.out", 8),
                                  LogNamed("pp8.3.out", 8), LogNamed("x.out", 32)},
                                 scripts);
  ASSERT_EQ(matches.size(), 4u);
  EXPECT_EQ(matches[0].script, "jobs/pp16.slurm");
  EXPECT_EQ(matches[0].evidence, "its --output");
  EXPECT_EQ(matches[0].rename, "logs/pp16.1234.out");
  EXPECT_EQ(matches[1].script, "jobs/pp8.slurm");
  EXPECT_EQ(matches[1].rename, "pp8.777.out");
  EXPECT_EQ(matches[2].script, "jobs/pp8.slurm");
  EXPECT_EQ(matches[2].rename, "") << "it has its name";
  EXPECT_EQ(matches[3].script, "") << "no script has PP=32";
}

TEST(MatchLogsTest, EqualMatchesAreAmbiguous) {
  const auto matches =
      MatchLogs({LogNamed("slurm-1.out", 8)}, {Script("a.slurm", "a", "", 8), Script("b.slurm", "b", "", 8)});
  EXPECT_EQ(matches[0].script, "");
  EXPECT_EQ(matches[0].evidence, "several scripts match equally well");
}

TEST(MatchLogsTest, NewNamesAreUnique) {
  const auto matches =
      MatchLogs({LogNamed("big.out", 16), LogNamed("logs/pp16.out", 16), LogNamed("big-x.out", 16)},
                {Script("pp16.slurm", "big", "", 16)});
  EXPECT_EQ(matches[0].rename, "pp16.out");
  EXPECT_EQ(matches[2].rename, "pp16.out.2");
}

}  // namespace
}  // namespace cairn
