#include "convert/foreign/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/foreign/open_options.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

// A matrix of one column; each array is a range of it that a rank stored.
struct CopiesSample {
  TempDir dir;
  StoredCatalog catalog;
  std::vector<float> file;
  std::vector<StoredReplica> replicas;

  uint32_t AddArray(const std::vector<float>& values) {
    catalog.arrays.push_back({"array", Dtype::kF32, {values.size(), 1}, {}});
    catalog.arrays.back().extents.push_back({{0, values.size()}, 0, file.size() * sizeof(float)});
    file.insert(file.end(), values.begin(), values.end());
    return static_cast<uint32_t>(catalog.arrays.size() - 1);
  }

  // The copies of rows from `begin` on; the first of them is read.
  void AddRows(uint64_t begin, const std::vector<std::vector<float>>& copies) {
    const uint32_t first = AddArray(copies[0]);
    const Dims shape = catalog.arrays[first].shape;
    catalog.parts.push_back({{{{begin, 0}, shape}, Box::Whole(shape)}, 0, first});
    for (size_t i = 1; i < copies.size(); ++i) replicas.push_back({0, AddArray(copies[i]), first});
  }

  std::vector<float> Read(Replicas how, const Box& box) {
    FileSystem& fs = FileSystem::Posix();
    catalog.files = {"data.bin"};
    const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size() * sizeof(float));
    (void)fs.RemoveFile(JoinPath(dir.path(), "data.bin"));
    EXPECT_TRUE(WriteSmallFile(fs, JoinPath(dir.path(), "data.bin"), bytes).ok());
    auto source = OpenWithReplicas(fs, dir.path(), {}, catalog, replicas, how);
    std::vector<float> values(box.Volume());
    EXPECT_TRUE(source.ok() && (*source)->ReadBox(0, box, std::as_writable_bytes(std::span(values))).ok());
    return values;
  }
};

TEST(Replicas, TheMeanIncludesCopiesEqualToTheFirst) {
  CopiesSample sample;
  sample.catalog.tensors.push_back({{.name = "w", .shape = {2, 1}}, Role::kWeight, Dtype::kF32});
  sample.AddRows(0, {{3, 6}, {3, 6}, {9, 6}});
  EXPECT_EQ(sample.Read(Replicas::kMean, Box::Whole({2, 1})), (std::vector<float>{5, 6}));
}

TEST(Replicas, BoxesOfATensorMayHaveDifferentNumbersOfCopies) {
  CopiesSample sample;
  sample.catalog.tensors.push_back({{.name = "w", .shape = {6, 1}}, Role::kWeight, Dtype::kF32});
  sample.AddRows(0, {{1, 2}, {3, 4}});                   // two copies
  sample.AddRows(2, {{0, 0}, {3, 0}, {0, 3}, {1, 1}});   // four
  sample.AddRows(4, {{7, 0.1f}, {7, 0.1f}, {7, 0.1f}});  // three that are equal
  EXPECT_EQ(sample.Read(Replicas::kMean, Box::Whole({6, 1})), (std::vector<float>{2, 3, 1, 1, 7, 0.1f}));
  EXPECT_EQ(sample.Read(Replicas::kMean, {{1, 0}, {2, 1}}), (std::vector<float>{3, 1}));
  EXPECT_EQ(sample.Read(Replicas::kFirst, Box::Whole({6, 1})), (std::vector<float>{1, 2, 0, 0, 7, 0.1f}));
}

}  // namespace
}  // namespace cairn
