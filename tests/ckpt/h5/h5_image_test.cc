#include "ckpt/h5/h5_image.h"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <numeric>

#include "ckpt/io/file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::vector<H5DatasetSpec> Matrices(size_t count) {
  std::vector<H5DatasetSpec> datasets;
  for (size_t i = 0; i < count; ++i)
    datasets.push_back({fmt::format("/weight/layer{}.w@0,0", i), Dtype::kF32, {50, 50}});
  return datasets;
}

uint64_t MetadataBytes(const H5Layout& layout) {
  return std::accumulate(layout.metadata.begin(), layout.metadata.end(), uint64_t{0},
                         [](uint64_t sum, const H5Extent& extent) { return sum + extent.bytes.size(); });
}

// Twice the datasets take twice the structures, and HDF5 finds each where the layout says.
TEST(H5ImageTest, MetadataGrowsLinearlyWithTheNumberOfDatasets) {
  const std::vector<H5DatasetSpec> datasets = Matrices(2000);
  const auto layout = LayOutH5(datasets);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  EXPECT_LT(MetadataBytes(*layout), datasets.size() * 512);
  EXPECT_LT(MetadataBytes(LayOutH5(Matrices(4000)).value()), 2.1 * MetadataBytes(*layout));

  const TempDir dir;
  const std::string path = dir / "many.h5";
  const auto out = FileSystem::Posix().Create(path).value();
  ASSERT_TRUE(out->Allocate(layout->file_bytes).ok());
  for (const H5Extent& extent : layout->metadata)
    ASSERT_TRUE(out->WriteAt(extent.offset, std::as_bytes(std::span(extent.bytes))).ok());
  ASSERT_TRUE(out->Close().ok());
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  uint64_t end = kH5HeadBytes;
  for (size_t i = 0; i < datasets.size(); ++i) {
    const hid_t dataset = H5Dopen2(file, datasets[i].path.c_str(), H5P_DEFAULT);
    ASSERT_GE(dataset, 0) << datasets[i].path;
    EXPECT_EQ(H5Dget_offset(dataset), layout->offsets[i]);
    EXPECT_EQ(layout->offsets[i], end);
    end += PageUp(50 * 50 * 4);
    H5Dclose(dataset);
  }
  H5Fclose(file);
}

}  // namespace
}  // namespace cairn
