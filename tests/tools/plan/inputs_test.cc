// Other inputs of the planner than tables: clusters; and its output: job scripts.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"
#include "tools/plan/cluster.h"
#include "tools/plan/iteration_work.h"
#include "tools/plan/sbatch.h"
#include "tools/plan/training.h"

namespace cairn {
namespace {

Result<Cluster> FromToml(const std::string& text) {
  TempDir dir;
  const std::string path = dir.path() + "/cluster.toml";
  std::ofstream(path) << text;
  return FindCluster(path);
}

TEST(ClusterTest, TomlOverridesABuiltInCluster) {
  const auto cluster = FromToml("base = \"h100\"\nnic_gbps = 100\ngpus-per-node = 4\n");
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(cluster->nic_gbps, 100);
  EXPECT_EQ(cluster->gpus_per_node, 4);
  EXPECT_EQ(cluster->sms, 132);
}

TEST(ClusterTest, SharedCoresNeedNoMultiprocessors) {
  const auto cluster = FromToml(
      "cpu = true\ncores = 2\ngpus-per-node = 8\nmemory-gb = 3\nhalf-tflops = 0.1\nsingle-tflops = 0.1\n"
      "hbm-gbps = 40\nlink-gbps = 12\nnic-gbps = 12\n");
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(cluster->cores, 2);
}

TEST(ClusterTest, NamesBadTomlWithItsLine) {
  const auto says = [](const std::string& text, std::string_view part) {
    const auto cluster = FromToml(text);
    return !cluster.ok() && cluster.status().message().find(part) != std::string::npos;
  };
  EXPECT_TRUE(says("base = \"a100-80\"\nsms = 0\n", ":2: sms: expected a number above 0"));
  EXPECT_TRUE(
      says("base = \"a100-80\"\ngpus-per-node = 0.5\n", ":2: gpus-per-node: expected a whole number"));
  EXPECT_TRUE(says("base = \"a1000\"\n", ":1: base: base must be one of"));
  EXPECT_TRUE(says("memory-gb = 80\n", "is missing"));
  EXPECT_TRUE(says("nic = 3\n", "unknown key 'nic'"));
  EXPECT_TRUE(says("base = \n", ":1:"));
  EXPECT_FALSE(FindCluster("a100").ok());
}

TEST(MatmulTest, TilesAndWaves) {
  EXPECT_DOUBLE_EQ(TileAndWaveEfficiency(256 * 108, 128, 108), 1);   // one full wave
  EXPECT_LT(TileAndWaveEfficiency(256 * 108 + 256, 128, 108), 0.7);  // and one tile more: a second one
  EXPECT_LT(TileAndWaveEfficiency(256, 129 * 54, 108), TileAndWaveEfficiency(256, 128 * 54, 108));
}

TEST(JobScriptTest, NamesTheConfigurationAndCarriesTheFlags) {
  PlanRequest request;
  request.shape = {.layers = 72, .hidden = 14336, .heads = 64, .vocab = 250000};
  request.cluster = *FindCluster("a100-80");
  request.rampup = {192, 32, 1000000};
  const RunSetup setup{384, 8, 12, 4, 1, 4, 2048, 1};
  EXPECT_EQ(JobName(request, setup), "181B-zero1-tp8-mbs-4-pp12-dp-4-gas-128");
  const std::string script = JobScriptText(request, setup, {.samples = 1e6, .arguments = "--lr 6e-5"});
  for (const char* part :
       {"#SBATCH --nodes=48\n", "--ntasks=$((8 * SLURM_JOB_NUM_NODES)) --ntasks-per-node=8 ",
        "#SBATCH --signal=B:USR1@600\n", "--requeue", "--pipeline-model-parallel-size 12\n",
        "--rampup-batch-size 192 32 1000000\n", "--train-samples 1000000\n", "--bf16\n",
        "--recompute-granularity full\n", "--lr 6e-5"})
    EXPECT_NE(script.find(part), std::string::npos) << part;
}

TEST(JobScriptTest, SavesPeriodicallyAndTakesDataFromItsArguments) {
  PlanRequest request;
  request.shape = {.layers = 72, .hidden = 14336, .heads = 64, .vocab = 250000};
  request.cluster = *FindCluster("a100-80");
  const RunSetup setup{384, 8, 12, 4, 1, 4, 2048, 1};
  const auto script = [&](const std::string& arguments) {
    return JobScriptText(request, setup, {.samples = 1e6, .save_interval = 40, .arguments = arguments});
  };
  EXPECT_NE(script("").find("  --save-interval 40\n"), std::string::npos);
  EXPECT_NE(script("").find("DATA_PATH:?"), std::string::npos);
  EXPECT_EQ(script("--data-path d").find("DATA_PATH"), std::string::npos);
  EXPECT_EQ(script("--lr 1e-4 --data-path=d").find("DATA_PATH"), std::string::npos);
  EXPECT_EQ(script("--save-interval 7").find("--save-interval 40"), std::string::npos);
}

}  // namespace
}  // namespace cairn
