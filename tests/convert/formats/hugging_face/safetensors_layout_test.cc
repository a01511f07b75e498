#include "convert/formats/hugging_face/safetensors_layout.h"

#include <gtest/gtest.h>

#include <cstring>

namespace cairn {
namespace {

std::string HeaderOf(const StorageLayout& layout) { return layout.Around({})[0].bytes; }

TEST(SafetensorsLayoutTest, WideTypesComeFirstThenNames) {
  const auto layout = MakeSafetensorsStorages({{"b", Dtype::kF16, {2, 3}},
                                               {"a", Dtype::kBool, {1}},
                                               {"z", Dtype::kF32, {}},
                                               {"c", Dtype::kBF16, {4}},
                                               {"a2", Dtype::kF16, {1}}},
                                              {{"who", "me"}});
  ASSERT_TRUE(layout.ok());
  const std::string expected = R"({"__metadata__":{"format":"pt","who":"me"},)"
                               R"("z":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                               R"("c":{"dtype":"BF16","shape":[4],"data_offsets":[4,12]},)"
                               R"("a2":{"dtype":"F16","shape":[1],"data_offsets":[12,14]},)"
                               R"("b":{"dtype":"F16","shape":[2,3],"data_offsets":[14,26]},)"
                               R"("a":{"dtype":"BOOL","shape":[1],"data_offsets":[26,27]}})";
  const std::string header = HeaderOf(**layout);
  EXPECT_EQ(header.substr(8, expected.size()), expected);
  EXPECT_EQ(header.find_first_not_of(' ', 8 + expected.size()), std::string::npos);
  EXPECT_EQ(header.size() % 8, 0u);
  uint64_t length;
  std::memcpy(&length, header.data(), 8);
  EXPECT_EQ(length + 8, header.size());
  EXPECT_EQ((*layout)->storage_offset(2), header.size());
  EXPECT_EQ((*layout)->bytes(), header.size() + 27);
}

TEST(SafetensorsLayoutTest, RefusesDuplicateNames) {
  const auto layout = MakeSafetensorsStorages({{"a", Dtype::kF16, {1}}, {"a", Dtype::kF16, {1}}}, {});
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_FALSE(MakeSafetensorsStorages({{"__metadata__", Dtype::kF16, {1}}}, {}).ok());
}

// Storages lie at the header's offsets, and the header includes the digest that is computed last.
TEST(SafetensorsLayoutTest, LayoutIncludesTheHeader) {
  const std::vector<StoredArray> entries = {{"x", Dtype::kU8, {4}}, {"y", Dtype::kF32, {2}}};
  const auto storages = MakeSafetensorsStorages(entries, {{"k", "v"}, {kSourceFingerprintKey, ""}});
  ASSERT_TRUE(storages.ok());
  EXPECT_EQ((*storages)->storage_count(), 2u);
  EXPECT_EQ((*storages)->storage_bytes(1), 8u);
  EXPECT_FALSE((*storages)->wants_crcs());
  Digest source{};
  source[0] = std::byte{0xab};
  const std::vector<PlacedBytes> around = (*storages)->Around({.crcs = {}, .source = source});
  ASSERT_EQ(around.size(), 1u);
  EXPECT_EQ(around[0].offset, 0u);
  EXPECT_EQ((*storages)->storage_offset(1), around[0].bytes.size());  // wide types come first
  EXPECT_EQ((*storages)->storage_offset(0), around[0].bytes.size() + 8);
  EXPECT_EQ((*storages)->bytes(), around[0].bytes.size() + 12);
  EXPECT_NE(around[0].bytes.find(R"("cairn.source_fingerprint":"ab00)"), std::string::npos);
  EXPECT_NE(around[0].bytes.find(R"("k":"v")"), std::string::npos);
}

}  // namespace
}  // namespace cairn
