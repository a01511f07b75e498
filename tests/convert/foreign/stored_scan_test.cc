#include "convert/foreign/stored_scan.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>

#include "convert/stream/fingerprint.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

// Bytes that do not repeat.
std::vector<std::byte> SomeBytes(uint64_t count) {
  std::vector<std::byte> bytes(count);
  uint64_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

class StoredScanTest : public testing::Test {
 protected:
  void WriteFile(const std::string& name, std::span<const std::byte> bytes) {
    std::ofstream(dir_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  // The sums of all tensors, read in disk order, and by ReadBox() in tensor order.
  void ExpectEqualSums(const StoredCatalog& catalog) {
    auto source = StoredSource::Make(fs_, dir_.path(), {}, catalog);
    ASSERT_TRUE(source.ok()) << source.status().message();
    StepFingerprint scanned(catalog.tensors);
    const Status status = ScanStored(
        fs_, dir_.path(), *(*source)->stored(),
        {.sums = scanned, .raw = [&](uint32_t, auto bytes) { raw_bytes_ += bytes.size(); }, .threads = 2});
    ASSERT_TRUE(status.ok()) << status.message();
    const auto read = SumsOf(**source);
    ASSERT_TRUE(read.ok());
    for (uint32_t i = 0; i < catalog.tensors.size(); ++i)
      EXPECT_TRUE(scanned.of(i) == read->of(i)) << catalog.tensors[i].spec.name;
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  std::atomic<uint64_t> raw_bytes_ = 0;
};

TensorEntry Weight(const std::string& name, Dims shape, Dtype dtype) {
  return {{.name = name, .shape = shape}, Role::kWeight, dtype};
}

// Elements lie across the ends of windows, and arrays in two files.
TEST_F(StoredScanTest, ScansElementsAtAnyAlignment) {
  const uint64_t first = 3'000'001, second = 77;
  WriteFile("a", SomeBytes(3 + first * 4 + 5));
  WriteFile("b", SomeBytes(second * 4 + 1));
  StoredCatalog catalog;
  catalog.files = {"a", "b"};
  catalog.tensors = {Weight("t", {first + second}, Dtype::kF32)};
  const Box whole = Box::Whole({first + second});
  catalog.arrays = {{.name = "t",
                     .dtype = Dtype::kF32,
                     .shape = {first + second},
                     .extents = {{{0, first}, 0, 3}, {{first, first + second}, 1, 1}}}};
  catalog.parts = {{{whole, whole}, 0, 0}};
  ExpectEqualSums(catalog);
  EXPECT_EQ(raw_bytes_, 3 + first * 4 + 5 + second * 4 + 1);
}

// Two tensors in one array: the rows of one, and the transpose of some columns for the other.
TEST_F(StoredScanTest, ScansPartsAndTransposes) {
  const uint64_t rows = 1200, columns = 1000;
  WriteFile("a", SomeBytes(16 + rows * columns * 2));
  for (const uint64_t split : {1u, 999u, 500u}) {
    StoredCatalog catalog;
    catalog.files = {"a"};
    catalog.tensors = {Weight("left", {rows, split}, Dtype::kBF16),
                       Weight("right", {columns - split, rows}, Dtype::kBF16)};
    catalog.arrays = {{.name = "fused",
                       .dtype = Dtype::kBF16,
                       .shape = {rows, columns},
                       .extents = {{{0, rows * columns}, 0, 16}}}};
    catalog.parts = {
        {{Box::Whole({rows, split}), {{0, 0}, {rows, split}}}, 0, 0},
        {{Box::Whole({columns - split, rows}), {{0, split}, {rows, columns - split}}, kLastTwoSwapped},
         1,
         0}};
    ExpectEqualSums(catalog);
  }
}

// Gates and ups [experts, ffn, hidden] are by turns the columns of a stack, [experts, hidden, 2 ffn].
TEST_F(StoredScanTest, EveryOtherColumnOfAStack) {
  const uint64_t experts = 3, ffn = 500, hidden = 800;
  const Dims shape{experts, ffn, hidden};
  WriteFile("a", SomeBytes(1 + experts * hidden * ffn * 2 * 2));
  StoredCatalog catalog;
  catalog.files = {"a"};
  catalog.tensors = {Weight("gate", shape, Dtype::kBF16), Weight("up", shape, Dtype::kBF16)};
  catalog.arrays = {{.name = "gate_up",
                     .dtype = Dtype::kBF16,
                     .shape = {experts, hidden, ffn, 2},
                     .extents = {{{0, experts * hidden * ffn * 2}, 0, 1}}}};
  for (const uint32_t i : {0u, 1u}) {
    const Box column{{0, 0, 0, i}, {experts, hidden, ffn, 1}};
    catalog.parts.push_back({{Box::Whole(shape), column, {3, 1, 0, 2, 4, 5, 6, 7}}, i, 0});
  }
  ExpectEqualSums(catalog);
}

TEST_F(StoredScanTest, ScansScalarsAndEmptyTensors) {
  WriteFile("a", SomeBytes(24));
  StoredCatalog catalog;
  catalog.files = {"a"};
  catalog.tensors = {Weight("scalar", {}, Dtype::kF64), Weight("empty", {0, 4}, Dtype::kF32)};
  catalog.arrays = {{.name = "scalar", .dtype = Dtype::kF64, .shape = {}, .extents = {{{0, 1}, 0, 9}}},
                    {.name = "empty", .dtype = Dtype::kF32, .shape = {0, 4}, .extents = {}}};
  catalog.parts = {{{Box::Whole({}), Box::Whole({})}, 0, 0},
                   {{Box::Whole({0, 4}), Box::Whole({0, 4})}, 1, 1}};
  ExpectEqualSums(catalog);
}

}  // namespace
}  // namespace cairn
