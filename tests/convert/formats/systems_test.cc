#include "convert/formats/systems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// What tells a format from the names of its files.
const std::map<std::string, std::vector<std::string>> kFilesOf = {
    {"hf", {"config.json", "model.safetensors"}},
    {"safetensors", {"model.safetensors.index.json"}},
    {"megatron", {"latest_checkpointed_iteration.txt", "iter_0000005/mp_rank_00/model_optim_rng.pt"}},
    {"universal", {"zero/model.weight/fp32.pt"}},
    {"deepspeed", {"latest", "global_step5/mp_rank_00_model_states.pt"}},
    {"dcp", {".metadata", "__0_0.distcp"}},
};

void PutFiles(const TempDir& dir, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = dir / name;
    ASSERT_TRUE(MakeDirs(Fs(), path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(RemoveIfThere(Fs(), path).ok());
    ASSERT_TRUE(WriteSmallFile(Fs(), path, "{}").ok());
  }
}

TEST(Formats, ATrainingIsReadBeforeTheWeightsBesideItWhicheverTheyAre) {
  for (const std::string weights : {"hf", "safetensors"})
    for (const std::string training : {"megatron", "universal", "deepspeed", "dcp"}) {
      const TempDir dir(TempDir::Place::kMemory);
      PutFiles(dir, kFilesOf.at(weights));
      EXPECT_EQ(Recognise(Fs(), dir.path())->system->name, weights);
      EXPECT_THAT(Recognise(Fs(), dir.path())->notes, IsEmpty());
      PutFiles(dir, kFilesOf.at(training));
      const auto both = Recognise(Fs(), dir.path());
      ASSERT_TRUE(both.ok()) << both.status().message();
      EXPECT_EQ(both->system->name, training);
      ASSERT_EQ(both->notes.size(), 1);
      EXPECT_THAT(both->notes[0], HasSubstr("--from " + weights));
    }
}

TEST(Formats, OfTwoTrainingsInOnePlaceBothAreOfferedByName) {
  for (const auto& [a, b] : {std::pair("megatron", "deepspeed"), std::pair("deepspeed", "dcp"),
                             std::pair("megatron", "universal"), std::pair("universal", "dcp")}) {
    const TempDir dir(TempDir::Place::kMemory);
    PutFiles(dir, kFilesOf.at(a));
    EXPECT_EQ(Recognise(Fs(), dir.path())->system->name, a);
    PutFiles(dir, kFilesOf.at(b));
    const auto both = Recognise(Fs(), dir.path());
    EXPECT_EQ(both.status().kind(), StatusKind::kInvalidArgument);
    EXPECT_THAT(both.status().message(),
                AllOf(HasSubstr(std::string("--from ") + a), HasSubstr(std::string("--from ") + b)));
  }
}

TEST(Formats, MegatronsTrackerBesideDeepSpeedsIsOfMegatronDeepSpeed) {
  const TempDir dir(TempDir::Place::kMemory);
  PutFiles(dir, kFilesOf.at("deepspeed"));
  PutFiles(dir, {"latest_checkpointed_iteration.txt"});
  EXPECT_EQ(Recognise(Fs(), dir.path())->system->name, "deepspeed");
}

TEST(Formats, AnOptimizerAndAnAdapterBesideAModelAreNoted) {
  const TempDir dir(TempDir::Place::kMemory);
  PutFiles(dir, kFilesOf.at("hf"));
  PutFiles(dir, {"optimizer.pt", "adapter_model.safetensors"});
  const auto found = Recognise(Fs(), dir.path());
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(found->notes,
              testing::ElementsAre(HasSubstr("/optimizer.pt"), HasSubstr("/adapter_model.safetensors")));
}

TEST(Formats, WhatIsNotReadIsNamedWithWhatToDo) {
  for (const auto& [file, says] :
       {std::pair("model-Q4_K_M.gguf", "GGUF"), std::pair("_CHECKPOINT_METADATA", "Orbax"),
        std::pair("model_world_size_2_rank_0.pt", "verl.model_merger"),
        std::pair("shard-00001-model-00001-of-00002.safetensors", "save_pretrained")}) {
    const TempDir dir(TempDir::Place::kMemory);
    PutFiles(dir, {"config.json", file});
    const auto found = Recognise(Fs(), dir.path());
    EXPECT_EQ(found.status().kind(), StatusKind::kNotSupported);
    EXPECT_THAT(found.status().message(), AllOf(HasSubstr(file), HasSubstr(says)));
  }
}

}  // namespace
}  // namespace cairn
