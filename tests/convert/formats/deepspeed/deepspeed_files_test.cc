// Names as DeepSpeed 0.19 writes them (runtime/engine.py, runtime/pipe/module.py), and older ones.
#include "convert/formats/deepspeed/deepspeed_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

class DeepSpeedFilesTest : public testing::Test {
 protected:
  // Empty files: only their names count.
  void Make(const std::string& directory, const std::vector<std::string>& names) {
    std::filesystem::create_directories(temp_ / directory);
    for (const std::string& name : names) std::ofstream file(temp_ / (directory + "/" + name));
  }
  void Latest(const std::string& tag) { std::ofstream(temp_ / "latest") << tag; }
  Result<DeepSpeedFiles> FindIn(const std::string& directory = "") {
    return FindDeepSpeedFiles(fs_, directory.empty() ? temp_.path() : temp_ / directory);
  }
  bool Matches(const std::string& directory = "") {
    return MatchesDeepSpeed(fs_, directory.empty() ? temp_.path() : temp_ / directory);
  }

  const TempDir temp_{TempDir::Place::kMemory};
  FileSystem& fs_ = FileSystem::Posix();
};

TEST_F(DeepSpeedFilesTest, ReadsLayersRanksAndShardsOfAPipeline) {
  Make("t", {"layer_01-model_00-model_states.pt", "layer_01-model_01-model_states.pt",
             "layer_12-model_00-model_states.pt", "mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt",
             "zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_0_mp_rank_01_optim_states.pt",
             "zero_pp_rank_10_mp_rank_01_optim_states.pt"});
  const auto files = FindIn("t");
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(files->directory, temp_ / "t");
  EXPECT_THAT(files->layers, ElementsAre(Pair(Pair(1, 0), "layer_01-model_00-model_states.pt"),
                                         Pair(Pair(1, 1), "layer_01-model_01-model_states.pt"),
                                         Pair(Pair(12, 0), "layer_12-model_00-model_states.pt")));
  EXPECT_THAT(files->models,
              ElementsAre(Pair(0, "mp_rank_00_model_states.pt"), Pair(1, "mp_rank_01_model_states.pt")));
  // By model parallel rank, then by data parallel rank, which the name calls pp.
  EXPECT_THAT(files->optimizers,
              ElementsAre(Pair(Pair(0, 0), "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
                          Pair(Pair(1, 0), "zero_pp_rank_0_mp_rank_01_optim_states.pt"),
                          Pair(Pair(1, 10), "zero_pp_rank_10_mp_rank_01_optim_states.pt")));
  EXPECT_THAT(files->zero3_models, IsEmpty());
}

TEST_F(DeepSpeedFilesTest, ALayerWithoutTensorParallelismBelongsToRank0) {
  Make("t", {"layer_03-model_states.pt"});
  EXPECT_THAT(FindIn("t")->layers, ElementsAre(Pair(Pair(3, 0), "layer_03-model_states.pt")));
}

TEST_F(DeepSpeedFilesTest, ReadsAllPrefixesOfOptimizerShards) {
  Make("t", {"mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
             "fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "zero_pp_rank_2_mp_rank_00optim_states.pt"});
  EXPECT_THAT(FindIn("t")->optimizers,
              ElementsAre(Pair(Pair(0, 0), "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
                          Pair(Pair(0, 1), "fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
                          Pair(Pair(0, 2), "zero_pp_rank_2_mp_rank_00optim_states.pt")));
}

TEST_F(DeepSpeedFilesTest, ReadsModelStatesOfEachRankOfZero3) {
  Make("t", {"zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"});
  const auto files = FindIn("t");
  EXPECT_THAT(files->zero3_models,
              ElementsAre(Pair(Pair(0, 0), "zero_pp_rank_0_mp_rank_00_model_states.pt"),
                          Pair(Pair(0, 1), "zero_pp_rank_1_mp_rank_00_model_states.pt")));
  EXPECT_THAT(files->models, IsEmpty());
  EXPECT_THAT(files->optimizers, IsEmpty());
}

TEST_F(DeepSpeedFilesTest, OtherFilesAreIgnored) {
  Make("t", {"mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt.tmp", "mp_rank_x_model_states.pt",
             "mp_rank_-1_model_states.pt", "layer_01-model_00-model_states.pt.bak", "layer_-model_states.pt",
             "layer_99999999999999999999-model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt.swp",
             "zero_pp_rank_0_optim_states.pt", "zero_to_fp32.py", "README.md"});
  const auto files = FindIn("t");
  EXPECT_THAT(files->models, ElementsAre(Pair(0, "mp_rank_00_model_states.pt")));
  EXPECT_THAT(files->layers, IsEmpty());
  EXPECT_THAT(files->optimizers, IsEmpty());
}

TEST_F(DeepSpeedFilesTest, LatestNamesTheDirectory) {
  Make("global_step2", {"mp_rank_00_model_states.pt"});
  for (const char* tag : {"global_step2", "global_step2\n"}) {
    Latest(tag);
    EXPECT_TRUE(Matches());
    EXPECT_EQ(FindIn()->directory, temp_ / "global_step2");
  }
}

TEST_F(DeepSpeedFilesTest, ReadsATagOfAnyName) {
  Make("best-7", {"mp_rank_00_model_states.pt"});
  EXPECT_FALSE(Matches());
  Latest("best-7");
  EXPECT_TRUE(Matches());
  EXPECT_EQ(FindIn()->directory, temp_ / "best-7");
  Latest("best-8");
  EXPECT_FALSE(Matches());
}

TEST_F(DeepSpeedFilesTest, ATagThatIsMissingOrOutsideIsAnError) {
  Make("global_step2", {"mp_rank_00_model_states.pt"});
  Make("global_step3", {});
  for (const char* tag : {"global_step3", "global_step4"}) {
    Latest(tag);
    EXPECT_EQ(FindIn().status().kind(), StatusKind::kNotFound) << tag;
    EXPECT_THAT(FindIn().status().message(), AllOf(HasSubstr("latest names"), HasSubstr(tag)));
  }
  for (const char* tag : {"../global_step2", "/global_step2", "..", ""}) {
    Latest(tag);
    EXPECT_EQ(FindIn().status().kind(), StatusKind::kCorrupt) << tag;
  }
}

TEST_F(DeepSpeedFilesTest, FilesOfExpertsAreSortedByMixtureAndExpert) {
  Make("moe", {"mp_rank_00_model_states.pt", "expp_rank_1_mp_rank_00_optim_states.pt",
               "layer_2_expert_13_mp_rank_00_model_states.pt"});
  const auto files = FindIn("moe");
  ASSERT_TRUE(files.ok()) << files.status().message();
  ASSERT_EQ(files->experts.size(), 1u);
  EXPECT_EQ(files->experts.at({2, 13}), "layer_2_expert_13_mp_rank_00_model_states.pt");
  EXPECT_EQ(files->expert_optimizers.at(1), "expp_rank_1_mp_rank_00_optim_states.pt");
}

TEST_F(DeepSpeedFilesTest, ExpertsOverTensorParallelRanksAndOldFormsAreRefused) {
  for (const char* name :
       {"expp_rank_0_mp_rank_01_optim_states.pt", "layer_2_expert_1_mp_rank_01_model_states.pt",
        "expert_0_mp_rank_00_model_states.pt"}) {
    const std::string directory = std::string("moe-") + name;
    Make(directory, {"mp_rank_00_model_states.pt", name});
    EXPECT_EQ(FindIn(directory).status().kind(), StatusKind::kNotSupported) << name;
    EXPECT_THAT(FindIn(directory).status().message(), HasSubstr(name));
  }
}

TEST_F(DeepSpeedFilesTest, OtherDirectoriesDoNotMatch) {
  Make("hf", {"config.json", "model.safetensors"});
  Make("tag", {"mp_rank_00_model_states.pt"});
  EXPECT_TRUE(Matches("tag"));
  EXPECT_FALSE(Matches("hf"));
  EXPECT_FALSE(Matches("missing"));
  EXPECT_FALSE(Matches("hf/config.json"));
  Latest("step-00000002");  // a run directory of Cairn has such a file too
  EXPECT_FALSE(Matches());
}

}  // namespace
}  // namespace cairn
