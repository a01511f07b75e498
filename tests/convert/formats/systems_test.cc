#include "convert/formats/systems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "convert/foreign/layouts.h"
#include "convert/foreign/stored_builder.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// File names from which a format is recognised.
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

TEST(Systems, PrefersATrainingOverWeights) {
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

TEST(Systems, TwoTrainingsInOneDirectoryAreBothOffered) {
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

TEST(Systems, BothTrackersMeanMegatronDeepSpeed) {
  const TempDir dir(TempDir::Place::kMemory);
  PutFiles(dir, kFilesOf.at("deepspeed"));
  PutFiles(dir, {"latest_checkpointed_iteration.txt"});
  EXPECT_EQ(Recognise(Fs(), dir.path())->system->name, "deepspeed");
}

TEST(Systems, NotesUnreadOptimizersAndAdapters) {
  const TempDir dir(TempDir::Place::kMemory);
  PutFiles(dir, kFilesOf.at("hf"));
  PutFiles(dir, {"optimizer.pt", "adapter_model.safetensors"});
  const auto found = Recognise(Fs(), dir.path());
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(found->notes,
              testing::ElementsAre(HasSubstr("/optimizer.pt"), HasSubstr("/adapter_model.safetensors")));
}

TEST(Systems, NamesUnsupportedFilesAndAlternatives) {
  for (const auto& [file, says] :
       {std::pair("model-Q4_K_M.gguf", "GGUF"), std::pair("_CHECKPOINT_METADATA", "Orbax")}) {
    const TempDir dir(TempDir::Place::kMemory);
    PutFiles(dir, {"config.json", file});
    const auto found = Recognise(Fs(), dir.path());
    EXPECT_EQ(found.status().kind(), StatusKind::kNotSupported);
    EXPECT_THAT(found.status().message(), AllOf(HasSubstr(file), HasSubstr(says)));
  }
}

// `names` in a folder.
std::vector<std::string> Below(const std::string& folder, std::vector<std::string> names) {
  for (std::string& name : names) name.insert(0, folder + "/");
  return names;
}

TEST(Systems, FindsTheOnlyCheckpointInADirectory) {
  for (const auto& [name, files] : kFilesOf) {
    const TempDir dir(TempDir::Place::kMemory);
    PutFiles(dir, Below("weights", files));
    PutFiles(dir, {"train/rank0.pt", "config.yaml"});
    const auto found = Recognise(Fs(), dir.path());
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->system->name, name);
    EXPECT_EQ(found->path, dir / "weights");
    EXPECT_THAT(found->notes, Contains(HasSubstr(dir / "weights is read")));
    EXPECT_FALSE(IsCheckpoint(Fs(), dir.path()));
    PutFiles(dir, Below("critic", files));
    const auto several = Recognise(Fs(), dir.path());
    EXPECT_EQ(several.status().kind(), StatusKind::kInvalidArgument);
    EXPECT_THAT(several.status().message(), AllOf(HasSubstr("critic, weights"), HasSubstr(dir / "critic")));
    EXPECT_EQ(RecogniseAll(Fs(), dir.path())->size(), 2);
    PutFiles(dir, {"step-00000100/manifest.json"});  // a run of Cairn, whatever else lies in it
    EXPECT_EQ(Recognise(Fs(), dir.path()).status().kind(), StatusKind::kNotFound);
  }
}

TEST(Systems, ReadsTheOnlyWeightFileUnderAnyName) {
  const TempDir dir(TempDir::Place::kMemory);
  PutFiles(dir, {"config.json", "training_args.bin", "optimizer.pt"});
  EXPECT_EQ(Recognise(Fs(), dir.path()).status().kind(), StatusKind::kNotFound);
  PutFiles(dir, {"model.fp16.safetensors"});
  EXPECT_EQ(Recognise(Fs(), dir.path())->path, dir / "model.fp16.safetensors");
  EXPECT_EQ(Recognise(Fs(), dir.path())->system->name, "hf");
  ASSERT_TRUE(RemoveIfThere(Fs(), dir / "model.fp16.safetensors").ok());
  ASSERT_TRUE(WriteSmallFile(Fs(), dir / "model.pth", "PK\x03\x04" + std::string(100, 'z')).ok());
  EXPECT_EQ(Recognise(Fs(), dir.path())->path, dir / "model.pth");
  EXPECT_EQ(Recognise(Fs(), dir.path())->system->name, "torch");
}

TEST(Systems, FilesOfRanksNameTheOneThatIsMissing) {
  const TempDir dir(TempDir::Place::kMemory);
  PutFiles(dir, {"actor/huggingface/config.json", "actor/model_world_size_2_rank_0.pt",
                 "actor/optim_world_size_2_rank_0.pt", "actor/optim_world_size_2_rank_1.pt"});
  const System& ranks = *FindSystem("rank-files");
  EXPECT_EQ(Recognise(Fs(), dir.path())->system, &ranks);
  const char* const missing = "/actor/model_world_size_2_rank_1.pt: is missing";
  EXPECT_THAT(OpenForeign(Fs(), dir.path()).status().message(), HasSubstr(missing));
  EXPECT_THAT(ranks.check_files(Fs(), dir / "actor", *Fs().List(dir / "actor")).message(),
              HasSubstr(missing));
  PutFiles(dir, {"actor/model_world_size_2_rank_1.pt"});
  EXPECT_TRUE(ranks.check_files(Fs(), dir / "actor", *Fs().List(dir / "actor")).ok());
}

TEST(Systems, ATrackerNeedsIterationsToMeanMegatron) {
  const TempDir dir(TempDir::Place::kMemory);
  PutFiles(dir, kFilesOf.at("megatron"));
  EXPECT_TRUE(IsCheckpoint(Fs(), dir.path()));
  ASSERT_TRUE(RemoveIfThere(Fs(), dir / "latest_checkpointed_iteration.txt").ok());
  EXPECT_FALSE(IsCheckpoint(Fs(), dir.path()));
  ASSERT_TRUE(WriteSmallFile(Fs(), dir / "latest_checkpointed_iteration.txt", "\n").ok());
  EXPECT_FALSE(IsCheckpoint(Fs(), dir.path()));
  EXPECT_EQ(Recognise(Fs(), dir.path())->path, dir / "iter_0000005");
  const TempDir verl(TempDir::Place::kMemory);
  PutFiles(verl, {"global_step_20/actor/model_world_size_1_rank_0.pt"});
  ASSERT_TRUE(WriteSmallFile(Fs(), verl / "latest_checkpointed_iteration.txt", "20").ok());
  EXPECT_FALSE(IsCheckpoint(Fs(), verl.path()));
}

TEST(Systems, FindsTheStepNumberAnywhereInAName) {
  const TempDir dir(TempDir::Place::kMemory);
  for (const auto& [name, step] : {std::pair("epoch=1-step=187.ckpt", 187), {"gpt--step=9-last", 9}}) {
    PutFiles(dir, {std::string(name) + "/notes.txt"});
    EXPECT_FALSE(NamedStepOf(Fs(), dir / name)) << "nothing to read in it";
    PutFiles(dir, Below(std::string(name) + "/weights", kFilesOf.at("dcp")));
    EXPECT_EQ(NamedStepOf(Fs(), dir / name)->step, step);
    EXPECT_EQ(NamedStepOf(Fs(), dir / name)->layout->format, "dcp");
  }
  EXPECT_FALSE(NamedStepOf(Fs(), dir.path()));
}

TEST(Systems, FindsTheStepNumberInTheNameOfAFile) {
  const auto step_of = [](const std::string& name) {
    std::optional<int64_t> step;
    for (const TrainerLayout& layout : TrainerLayouts())
      if (!step) step = layout.StepOfFile(name);
    return step.value_or(-1);
  };
  EXPECT_EQ(step_of("epoch=3-step=187-v1.ckpt"), 187);
  EXPECT_EQ(step_of("model-step=00008.ckpt"), 8);
  EXPECT_EQ(step_of("ep1-ba12-rank0.pt"), 12);
  for (const char* name :
       {"last.ckpt", "epoch=3.ckpt", "ep1-ba12-rank1.pt", "step=.ckpt", "step=99999999999999999999.ckpt"})
    EXPECT_EQ(step_of(name), -1) << name;
}

// A format of one file, toy.bin: two fp32 elements.
bool MatchesToy(FileSystem& fs, const std::string& path) { return fs.Stat(JoinPath(path, "toy.bin")).ok(); }

Result<std::unique_ptr<ForeignSource>> OpenToy(FileSystem& fs, const std::string& path, ReaderOptions&) {
  StoredBuilder builder;
  const Dims shape = {2};
  StoredArray array{.name = "w", .dtype = Dtype::kF32, .shape = shape};
  array.extents.push_back({.range = {0, 2}, .file = builder.AddFile("toy.bin"), .file_offset = 0});
  CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor,
                         builder.Tensor({.name = "w", .shape = shape}, Role::kWeight, Dtype::kF32));
  builder.AddPart(tensor, Box::Whole(shape), array);
  builder.account.AddStorage("toy.bin", "w", 0, 8);
  return builder.Open(fs, path, {});
}

TEST(Systems, ARowAddsAFormat) {
  std::vector<System> systems(Systems().begin(), Systems().end());
  systems.push_back({.name = "toy", .reads = "a file toy.bin", .matches = MatchesToy, .open = OpenToy});
  const TempDir dir(TempDir::Place::kMemory);
  const auto missing = Recognise(Fs(), dir.path(), systems);
  EXPECT_THAT(missing.status().message(), HasSubstr("torch, toy"));
  ASSERT_TRUE(WriteSmallFile(Fs(), dir / "toy.bin", "12345678").ok());
  EXPECT_EQ(Recognise(Fs(), dir.path(), systems)->system->name, "toy");
  const auto source = OpenForeign(Fs(), dir.path(), {}, systems);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->catalog().tensors.size(), 1);
  const auto layouts =
      ReadLayouts("toy.json", R"([{"program": "toy", "format": "toy", "steps": ["toy-#"]}])");
  ASSERT_TRUE(layouts.ok()) << layouts.status().message();
  EXPECT_EQ(ParseForeignStep("toy-12", *layouts)->step, 12);
  EXPECT_FALSE(ParseForeignStep("toy-12"));
}

// Names in a row must be in the table, and each row must be used.
TEST(Systems, RowsAreConsistent) {
  for (const System& system : Systems()) {
    EXPECT_EQ(FindSystem(system.name), &system) << system.name;
    EXPECT_EQ(system.open == nullptr, system.matches == nullptr) << system.name;
    EXPECT_EQ(system.writes.empty(), !system.plan && !system.release) << system.name;
    EXPECT_FALSE(system.plan && system.release) << system.name;
    EXPECT_EQ(system.is_native(), system.name == "native");
    if (system.plan || (system.release && !system.is_native())) {
      const System* reader = FindSystem(system.reader);
      EXPECT_TRUE(reader && reader->open) << system.name;
    }
    EXPECT_TRUE(system.covers.empty() || FindSystem(system.covers)) << system.name;
  }
}

TEST(Systems, NamesOfStepsIdentifyTheSystem) {
  for (const auto& [name, system, step] : {std::tuple("global_step2", "deepspeed", 2),
                                           {"iter_0000100", "megatron", 100},
                                           {"checkpoint-500", "hf", 500},
                                           {"checkpoint_3", "dcp", 3},
                                           {"step-40", "dcp", 40},
                                           {"step_7", "dcp", 7},
                                           {"global_step_7", "rank-files", 7},
                                           {"step9", "dcp", 9}}) {
    const auto named = ParseForeignStep(name);
    ASSERT_TRUE(named) << name;
    EXPECT_EQ(named->layout->format, system);
    EXPECT_EQ(named->step, step);
  }
  for (const char* other : {"iter_", "step--1", "checkpoint-5x", "epoch3", ""})
    EXPECT_FALSE(ParseForeignStep(other)) << other;
}

}  // namespace
}  // namespace cairn
