#include "tools/check/step_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tools/check/model_check.h"
#include "tools/check/sample_check.h"
#include "tools/check/value_check.h"

namespace cairn {
namespace {

class StepCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    StepRecipe recipe = RecipeOf({}, {.tp = 2, .pp = 2, .dp = 2, .zero = 1});
    ASSERT_TRUE(MakeStep(fs_, dir_ / "gpt", recipe).ok());
  }

  void Overwrite(const std::string& file, uint64_t offset, std::string_view bytes) {
    std::fstream out(directory_ + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(offset);
    out.write(bytes.data(), bytes.size());
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  const std::string directory_ = dir_ / "gpt/step-00000100";
};

TEST_F(StepCheckTest, AnIntactStepHasNoProblem) {
  const VerifyReport report = CheckStep(fs_, directory_, {});
  EXPECT_TRUE(report.problems.empty());
  EXPECT_GT(report.bytes_checked, 0u);
}

TEST_F(StepCheckTest, NamesEveryMissingAndTruncatedFile) {
  std::filesystem::remove(directory_ + "/shard-00001.h5");
  std::filesystem::resize_file(directory_ + "/shard-00002.h5", 5000);
  const VerifyReport report = CheckStep(fs_, directory_, {});
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_TRUE(report.problems[0].file.ends_with("shard-00001.h5"));
  EXPECT_TRUE(report.problems[1].file.ends_with("shard-00002.h5"));
  EXPECT_EQ(report.problems[1].offset, 5000u);
}

TEST_F(StepCheckTest, AFullSampleFindsEveryDamagedChunk) {
  const auto step = StepReader::Open(fs_, directory_);
  const Piece& piece = (*step)->catalog().pieces[7];
  const std::string& file = (*step)->catalog().files[piece.file];
  Overwrite(file, piece.file_offset + 1, "?");
  const VerifyReport report = CheckStep(fs_, directory_, {.sample = SampleSize{}});
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].offset, piece.file_offset);
  EXPECT_EQ(report.problems[0].tensor, DisplayName((*step)->catalog().tensors[piece.tensor]));
  EXPECT_EQ(report.bytes_checked, (*step)->catalog().bytes());
}

TEST_F(StepCheckTest, ReportsWeightsThatDifferFromTheirRoundedMasters) {  // MakeStep draws both at random
  const VerifyReport report = CheckStep(fs_, directory_, {.structure = false, .hash = false, .values = true});
  ASSERT_FALSE(report.problems.empty());
  EXPECT_NE(report.problems[0].what.find("not the fp32 master"), std::string::npos)
      << report.problems[0].what;
}

TEST_F(StepCheckTest, AnUnreadableStepFailsEveryRequestedCheck) {
  std::filesystem::remove(directory_ + "/shard-00001.h5");
  const StepReport report = CheckStep(fs_, directory_, {.values = true});
  ASSERT_EQ(report.checks.size(), 3u);
  for (const Check& check : report.checks) EXPECT_EQ(check.problems, 1u) << Name(check.kind);
}

TEST_F(StepCheckTest, AFailedSampleNamesTheDamagedBytes) {
  const auto step = StepReader::Open(fs_, directory_);
  const Piece& piece = (*step)->catalog().pieces[7];
  const std::string& file = (*step)->catalog().files[piece.file];
  Overwrite(file, piece.file_offset + 1, "?");
  const StepReport report = CheckStep(fs_, directory_, {.structure = false, .sample = SampleSize{}});
  ASSERT_EQ(report.checks.size(), 1u);
  const std::vector<CheckedRange> wrong = {{file, piece.file_offset, piece.file_offset + piece.stored_bytes}};
  EXPECT_EQ(report.checks[0].ranges, wrong);
}

// The problems of a step with this manifest in a directory of this name.
std::string ProblemOf(const std::function<void(Manifest&)>& change, const std::string& name = "step-00000100",
                      const TinyGpt& model = {.layers = 4}) {
  const TempDir dir;
  FileSystem& fs = FileSystem::Posix();
  EXPECT_TRUE(MakeStep(fs, dir / "gpt", RecipeOf(model, {.pp = 2, .layers_per_stage = {1, 3}})).ok());
  const auto step = StepReader::Open(fs, dir / "gpt/step-00000100");
  Manifest manifest = (*step)->manifest();
  change(manifest);
  const std::vector<Problem> problems = CheckModel(dir / "gpt/" + name, manifest, (*step)->catalog().tensors);
  EXPECT_LE(problems.size(), 1u);
  return problems.empty() ? "" : ToString(problems.front());
}

TEST(ModelCheckTest, AManifestMustMatchItsTensorsAndDirectory) {
  EXPECT_EQ(ProblemOf([](Manifest&) {}), "");
  EXPECT_EQ(ProblemOf([](Manifest&) {}, "back"), "") << "restored under another name";
  EXPECT_EQ(ProblemOf([](Manifest& m) { m.model = Model(); }), "") << "no model";
  EXPECT_EQ(ProblemOf([](Manifest& m) {
              m.model.architecture = "my_own";
              m.model.hidden_size = 3;
            }),
            "");
  EXPECT_EQ(ProblemOf([](Manifest& m) { m.state.erase("iteration"); }), "");
  EXPECT_EQ(ProblemOf([](Manifest& m) { m.model.max_position_embeddings = 0; }), "") << "not recorded";
  const struct {
    const char* says;
    std::function<void(Manifest&)> change;
  } kCases[] = {
      {"its model has 1 layers, but its tensors belong to 4", [](Manifest& m) { m.model.num_layers = 1; }},
      {"its model has \"4\" layers", [](Manifest& m) { m.model.num_layers = "4"; }},
      {"attention heads do not divide its hidden size", [](Manifest& m) { m.model.num_attention_heads = 3; }},
      {"heads of 4 rows", [](Manifest& m) { m.model.num_attention_heads = 2; }},
      {"it is stored as", [](Manifest& m) { m.model.hidden_size = 32; }},
      {"it is stored as", [](Manifest& m) { m.model.vocab_size = 51; }},
      {"iteration -5", [](Manifest& m) { m.state["iteration"] = -5; }},
      {"iteration 4, but it is of step 100", [](Manifest& m) { m.state["iteration"] = 4; }},
      {"stages do not fit",
       [](Manifest& m) {
         m.topology.layers_per_stage = {2, 3};
       }},
      {"its directory is named",
       [](Manifest& m) {
         m.step = 6;
         m.state["iteration"] = 6;
       }},
  };
  for (const auto& c : kCases)
    EXPECT_NE(ProblemOf(c.change).find(c.says), std::string::npos) << c.says << ": " << ProblemOf(c.change);
}

TEST(ModelCheckTest, AManifestMustHaveTheNumberOfExpertsOfItsTensors) {
  const auto problem = [](int64_t experts) {
    return ProblemOf([&](Manifest& m) { m.model.num_experts = experts; }, "step-00000100",
                     {.layers = 4, .experts = 4});
  };
  EXPECT_EQ(problem(4), "");
  EXPECT_NE(problem(8).find("layers.3.mlp: the files hold 4 of 8 experts"), std::string::npos) << problem(8);
  EXPECT_NE(problem(2).find("hold 4 experts, the configuration has 2"), std::string::npos) << problem(2);
}

TEST_F(StepCheckTest, LocatesElementsInTheirFiles) {
  const auto step = StepReader::Open(fs_, directory_);
  const StepCatalog& catalog = (*step)->catalog();
  for (uint32_t t = 0; t < catalog.tensors.size(); ++t) {
    const TensorEntry& tensor = catalog.tensors[t];
    const std::vector<std::byte> whole = ValuesOf(tensor, 1);
    const uint64_t size = SizeOf(tensor.dtype);
    for (uint64_t i = 0; i < whole.size() / size; i += 7) {
      const StoredAt at = LocateElement(catalog, t, i);
      const auto file = fs_.OpenForRead(JoinPath(directory_, catalog.files[at.file]));
      std::byte stored[8];
      ASSERT_TRUE((*file)->ReadAt(at.offset, std::span(stored, size)).ok());
      ASSERT_EQ(std::memcmp(stored, whole.data() + i * size, size), 0)
          << DisplayName(tensor) << " element " << i;
    }
  }
}

TEST(SampleSizeTest, PercentAndBytes) {
  EXPECT_DOUBLE_EQ(ParseSampleSize("5%")->fraction, 0.05);
  EXPECT_EQ(ParseSampleSize("200GB")->max_bytes, 200'000'000'000u);
  EXPECT_EQ(ParseSampleSize("1.5KiB")->max_bytes, 1536u);
  EXPECT_EQ(ParseSampleSize("7")->max_bytes, 7u);
  for (const char* bad : {"", "x", "-1", "0", "101%", "5 GB", "5gb", "nan", "inf", "1e300"})
    EXPECT_FALSE(ParseSampleSize(bad).ok()) << bad;
}

}  // namespace
}  // namespace cairn
