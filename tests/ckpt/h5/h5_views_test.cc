#include "ckpt/h5/h5_views.h"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <nlohmann/json.hpp>

#include "ckpt/h5/h5_image.h"
#include "ckpt/h5/h5_index.h"
#include "ckpt/io/file_system.h"
#include "ckpt/model/layout.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kRows = 6, kColumns = 1000;

TensorEntry Entry(const std::string& name, Role role, Dtype dtype, Dims shape) {
  TensorEntry entry{.role = role, .dtype = dtype};
  entry.spec.name = name;
  entry.spec.shape = shape;
  return entry;
}

// A weight in two shards, the first with `rows` of its rows, and a JSON of `bytes` bytes.
Catalog CatalogOf(uint64_t rows, uint64_t json_bytes, uint64_t file_offset) {
  Catalog catalog;
  catalog.files = {"shard-00000.h5", "shard-00001.h5"};
  catalog.tensors = {Entry("a", Role::kWeight, Dtype::kF32, {kRows, kColumns}),
                     Entry("state_dict", Role::kJson, Dtype::kU8, {json_bytes})};
  const Box parts[] = {{{0, 0}, {rows, kColumns}}, {{rows, 0}, {kRows - rows, kColumns}}};
  for (uint32_t file = 0; file < 2; ++file)
    catalog.pieces.push_back({.tensor = 0,
                              .file = file,
                              .box = parts[file],
                              .range = {0, parts[file].Volume()},
                              .file_offset = file_offset,
                              .stored_bytes = parts[file].Volume() * 4});
  catalog.pieces.push_back({.tensor = 1,
                            .file = 1,
                            .box = {{0}, {json_bytes}},
                            .range = {0, json_bytes},
                            .stored_bytes = json_bytes});
  return catalog;
}

std::string IndexOf(const Catalog& catalog, int step, H5Views* kept = nullptr) {
  return BuildIndex(catalog, {{"hidden_size", 8}}, {{"iteration", step}}, {}, kept).value().bytes;
}

TEST(H5ViewsTest, ReusedViewsGiveTheSameIndexAsNewOnes) {
  H5Views kept;
  int step = 0;
  for (const Catalog& catalog : {CatalogOf(2, 100, 4096), CatalogOf(2, 250, 8192), CatalogOf(3, 250, 8192),
                                 CatalogOf(2, 100, 4096), CatalogOf(2, 100, 4096)}) {
    ++step;
    EXPECT_EQ(IndexOf(catalog, step, &kept), IndexOf(catalog, step)) << step;
  }
}

TEST(H5ViewsTest, ViewsAreReusedWhileTheLayoutStays) {
  H5Views kept;
  const auto made = [&](const Catalog& catalog, const std::string& shards) {
    EXPECT_TRUE(kept.Of(catalog, shards).ok());
    return kept.made();
  };
  EXPECT_EQ(made(CatalogOf(2, 100, 4096), ""), 1);
  EXPECT_EQ(made(CatalogOf(2, 100, 4096), ""), 1);
  EXPECT_EQ(made(CatalogOf(2, 999, 8192), ""), 1);
  EXPECT_EQ(made(CatalogOf(3, 999, 8192), ""), 2);
  EXPECT_EQ(made(CatalogOf(3, 999, 8192), "shards"), 3);
}

// As a shard's file, all of whose data is zeros.
std::string FileOf(const H5Layout& layout) {
  std::string bytes(layout.file_bytes, '\0');
  for (const H5Extent& extent : layout.metadata)
    bytes.replace(extent.offset, extent.bytes.size(), extent.bytes);
  return bytes;
}

// A program of HDF5 finds each tensor by its name, whether the index has a view of it or a link.
TEST(H5ViewsTest, InLargeIndexesTensorsOfOneDatasetAreLinks) {
  constexpr uint32_t kTensors = 9000;
  Catalog catalog;
  catalog.files = {"shard-00000.h5"};
  std::vector<H5DatasetSpec> datasets;
  for (uint32_t i = 0; i < kTensors; ++i) {
    catalog.tensors.push_back(Entry(fmt::format("t{}", i), Role::kWeight, Dtype::kF32, {4}));
    const bool split = i == 1;
    for (uint64_t row = 0; row < 4; row += split ? 2 : 4) {
      const Box box = {{row}, {split ? 2U : 4U}};
      catalog.pieces.push_back({.tensor = i, .box = box, .range = {0, box.Volume()}, .stored_bytes = 16});
      datasets.push_back({PiecePath(catalog.tensors[i], box, {0, box.Volume()}), Dtype::kF32, box.extent});
    }
  }
  const TempDir dir;
  FileSystem& fs = FileSystem::Posix();
  ASSERT_TRUE(WriteSmallFile(fs, dir / "index.h5", IndexOf(catalog, 1)).ok());
  ASSERT_TRUE(WriteSmallFile(fs, dir / "shard-00000.h5", FileOf(LayOutH5(datasets).value())).ok());
  const hid_t file = H5Fopen((dir / "index.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  for (const uint32_t i : {0U, 1U, 2U, kTensors - 1}) {
    const std::string path = TensorPath(catalog.tensors[i]);
    H5L_info_t link;
    ASSERT_GE(H5Lget_info(file, path.c_str(), &link, H5P_DEFAULT), 0);
    EXPECT_EQ(link.type, i == 1 ? H5L_TYPE_HARD : H5L_TYPE_EXTERNAL) << path;
    const hid_t dataset = H5Dopen2(file, path.c_str(), H5P_DEFAULT);
    ASSERT_GE(dataset, 0) << path;
    std::vector<float> values(4, 7);
    EXPECT_GE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    EXPECT_EQ(values, std::vector<float>(4));
    H5Dclose(dataset);
  }
  H5Fclose(file);
}

// HDF5 takes the names of a view's sources as format strings. The values are ones: a missing source
// reads as zeros.
TEST(H5ViewsTest, PercentSignsInNamesAreKept) {
  Catalog catalog;
  catalog.files = {"shard-%d.h5"};
  std::vector<H5DatasetSpec> datasets;
  for (const char* name : {"a%b", "a%%b", "%d", "%s", "100%"}) {
    catalog.tensors.push_back(Entry(name, Role::kWeight, Dtype::kF32, {4}));
    const auto tensor = static_cast<uint32_t>(datasets.size());
    const Box box = Box::Whole({4});
    catalog.pieces.push_back({.tensor = tensor, .box = box, .range = {0, 4}, .stored_bytes = 16});
    datasets.push_back({PiecePath(catalog.tensors[tensor], box, {0, 4}), Dtype::kF32, {4}});
  }
  const H5Layout layout = LayOutH5(datasets).value();
  std::string shard = FileOf(layout);
  const std::vector<float> ones(4, 1);
  for (const uint64_t offset : layout.offsets)
    shard.replace(offset, 16, reinterpret_cast<const char*>(ones.data()), 16);
  const TempDir dir;
  FileSystem& fs = FileSystem::Posix();
  ASSERT_TRUE(fs.MakeDir(dir / "50%").ok());
  const auto index = BuildIndex(catalog, nlohmann::json::object(), nlohmann::json::object(), "50%");
  ASSERT_TRUE(index.ok()) << index.status().message();
  ASSERT_TRUE(WriteSmallFile(fs, dir / "index.h5", index->bytes).ok());
  ASSERT_TRUE(WriteSmallFile(fs, dir / "50%/shard-%d.h5", shard).ok());
  const hid_t file = H5Fopen((dir / "index.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  for (const TensorEntry& tensor : catalog.tensors) {
    const hid_t dataset = H5Dopen2(file, TensorPath(tensor).c_str(), H5P_DEFAULT);
    ASSERT_GE(dataset, 0) << tensor.spec.name;
    std::vector<float> values(4, 7);
    EXPECT_GE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    EXPECT_EQ(values, ones) << tensor.spec.name;
    H5Dclose(dataset);
  }
  H5Fclose(file);
}

}  // namespace
}  // namespace cairn
