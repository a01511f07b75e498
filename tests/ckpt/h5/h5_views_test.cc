#include "ckpt/h5/h5_views.h"

#include <gtest/gtest.h>

#include "ckpt/h5/h5_index.h"

namespace cairn {
namespace {

constexpr uint64_t kRows = 6, kColumns = 1000;

TensorEntry Entry(const std::string& name, Role role, Dtype dtype, Dims shape) {
  TensorEntry entry{.role = role, .dtype = dtype};
  entry.spec.name = name;
  entry.spec.shape = shape;
  return entry;
}

// A weight in two shards, the first with `rows` of its rows, and a JSON of so many bytes.
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

TEST(H5ViewsTest, AnIndexOverKeptViewsIsTheIndexMadeAnew) {
  H5Views kept;
  int step = 0;
  for (const Catalog& catalog : {CatalogOf(2, 100, 4096), CatalogOf(2, 250, 8192), CatalogOf(3, 250, 8192),
                                 CatalogOf(2, 100, 4096), CatalogOf(2, 100, 4096)}) {
    ++step;
    EXPECT_EQ(IndexOf(catalog, step, &kept), IndexOf(catalog, step)) << step;
  }
}

TEST(H5ViewsTest, ViewsAreKeptWhileTheLayoutStays) {
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

}  // namespace
}  // namespace cairn
