#include "convert/formats/hugging_face/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<WeightIndex> ReadIndexOf(const std::string& json) {
  const TempDir temp(TempDir::Place::kMemory);
  const std::string path = temp.path() + "/model.safetensors.index.json";
  std::ofstream(path) << json;
  return ReadWeightIndex(FileSystem::Posix(), path);
}

TEST(WeightIndexTest, FilesAreSortedAndListedOnce) {
  const auto index =
      ReadIndexOf(R"({"metadata":{"total_size":8},"weight_map":{"c":"2.bin","a":"2.bin","b":"1.bin"}})");
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_THAT(index->files, ElementsAre("1.bin", "2.bin"));
  EXPECT_EQ(index->file_of.at("c"), "2.bin");
  EXPECT_EQ(index->file_of.size(), 3u);
}

// A hostile index must not make the reader open a file outside of its directory.
TEST(WeightIndexTest, RefusesFilesOfOtherDirectories) {
  for (const char* file : {R"("../secret.bin")", R"("/etc/passwd")", R"("sub/1.bin")", R"("..")", R"(".")",
                           R"("")", "7", "null"}) {
    const auto index = ReadIndexOf(fmt::format(R"({{"weight_map":{{"first":{}}}}})", file));
    EXPECT_EQ(index.status().kind(), StatusKind::kCorrupt) << file;
    EXPECT_THAT(index.status().message(), HasSubstr("tensor first is in " + std::string(file)));
  }
}

TEST(WeightIndexTest, AnEmptyIndexIsCorrupt) {
  for (const char* json : {"{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a")", ""})
    EXPECT_EQ(ReadIndexOf(json).status().kind(), StatusKind::kCorrupt) << json;
}

TEST(WeightIndexTest, NamesMisplacedRepeatedAndMissingTensors) {
  WeightIndex index;
  index.file_of = {{"a", "1.bin"}, {"b", "2.bin"}};
  const auto check = [&](const std::vector<std::pair<std::string, std::string>>& found) {
    return CheckAgainstIndex("index.json", index, found).message();
  };
  EXPECT_THAT(check({{"a", "2.bin"}, {"b", "2.bin"}}),
              HasSubstr("tensor a should be in 1.bin, but is not; 2.bin has it: correct the weight_map"));
  EXPECT_THAT(check({{"c", "1.bin"}}), HasSubstr("tensor c is in 1.bin"));
  EXPECT_THAT(check({{"a", "1.bin"}, {"a", "1.bin"}}), HasSubstr("tensor a is in 1.bin"));
  EXPECT_THAT(check({{"a", "1.bin"}}), HasSubstr("tensor b should be in 2.bin"));
  EXPECT_EQ(check({{"b", "2.bin"}, {"a", "1.bin"}}), "");
  EXPECT_EQ(check({{"b", "2.bin"}, {"a", "1.bin"}, {"a", "2.bin"}}), "");  // the index decides
}

}  // namespace
}  // namespace cairn
