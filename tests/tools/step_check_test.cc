#include "tools/step_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tools/value_check.h"

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

TEST_F(StepCheckTest, AWholeStepHasNoProblem) {
  const VerifyReport report = CheckStep(fs_, directory_, {});
  EXPECT_TRUE(report.problems.empty());
  EXPECT_GT(report.bytes_checked, 0u);
}

TEST_F(StepCheckTest, EveryMissingAndTruncatedFileIsNamed) {
  std::filesystem::remove(directory_ + "/shard-00001.h5");
  std::filesystem::resize_file(directory_ + "/shard-00002.h5", 5000);
  const VerifyReport report = CheckStep(fs_, directory_, {});
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_TRUE(report.problems[0].file.ends_with("shard-00001.h5"));
  EXPECT_TRUE(report.problems[1].file.ends_with("shard-00002.h5"));
  EXPECT_EQ(report.problems[1].offset, 5000u);
}

TEST_F(StepCheckTest, AWholeSampleFindsEveryDamagedChunk) {
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

TEST_F(StepCheckTest, WeightsThatAreNotTheirMastersAreTold) {  // MakeStep draws both at random
  const VerifyReport report = CheckStep(fs_, directory_, {.structure = false, .hash = false, .values = true});
  ASSERT_FALSE(report.problems.empty());
  EXPECT_NE(report.problems[0].what.find("not the fp32 master"), std::string::npos)
      << report.problems[0].what;
}

TEST_F(StepCheckTest, ElementsAreFoundWhereTheyLie) {
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
