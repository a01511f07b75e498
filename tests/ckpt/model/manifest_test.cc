#include "ckpt/model/manifest.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

Manifest ExampleManifest() {
  Manifest manifest;
  manifest.run = "0123456789abcdef0123456789abcdef";
  manifest.step = 20;
  manifest.topology = {2, 2, 1, 1};
  manifest.model = {{"architecture", "gpt2"}, {"layernorm_epsilon", 1e-5}};
  manifest.state = {{"iteration", 20}, {"consumed_tokens", 640}};
  manifest.files = {{"shard-00000.h5", 4096, DigestOf("a")}, {"index.h5", 8192, DigestOf("b")}};
  manifest.catalog_bytes = 100;
  return manifest;
}

TEST(ManifestTest, DecodeReturnsWhatWasEncoded) {
  const auto decoded = DecodeManifest(EncodeManifest(ExampleManifest()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, ExampleManifest());
}

TEST(ManifestTest, EveryFlippedBitAndEveryTruncationIsRefused) {
  const std::string text = EncodeManifest(ExampleManifest());
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(DecodeManifest(flipped).ok()) << "bit " << bit;
  }
  for (size_t size = 0; size < text.size(); ++size)
    EXPECT_FALSE(DecodeManifest(text.substr(0, size)).ok()) << size;
}

TEST(ManifestTest, UnknownVersionIsNotSupported) {
  std::string text = EncodeManifest(ExampleManifest());
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 4");
  EXPECT_EQ(DecodeManifest(text).status().kind(), StatusKind::kNotSupported);
}

// Programs that know version 2 only would take another step for the newest.
TEST(ManifestTest, BranchesMakeItVersion3) {
  Manifest manifest = ExampleManifest();
  manifest.branches = {11, 9};
  const std::string text = EncodeManifest(manifest);
  EXPECT_NE(text.find("\"version\": 3"), std::string::npos);
  const auto decoded = DecodeManifest(text);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, manifest);
}

// Programs that know version 1 only would look for the shards in the step's own directory.
TEST(ManifestTest, ShardsElsewhereMakeItVersion2) {
  Manifest manifest = ExampleManifest();
  manifest.shards = "../../other/step-00000020";
  const std::string text = EncodeManifest(manifest);
  EXPECT_NE(text.find("\"version\": 2"), std::string::npos);
  const auto decoded = DecodeManifest(text);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, manifest);
  EXPECT_NE(EncodeManifest(ExampleManifest()).find("\"version\": 1"), std::string::npos);
}

TEST(ManifestTest, FileNamesThatLeaveTheDirectoryAreRefused) {
  Manifest manifest = ExampleManifest();
  manifest.files[0].name = "../shard-00000.h5";
  EXPECT_EQ(DecodeManifest(EncodeManifest(manifest)).status().kind(), StatusKind::kCorrupt);
}

// What is nested deeper than the stack is deep, no printer of JSON comes back from.
TEST(ManifestTest, NestingBeyondAnyManifestIsCorrupt) {
  for (const int depth : {100, 1'000'000}) {
    const std::string deep = std::string(depth, '[') + std::string(depth, ']');
    for (const char* field : {"format", "model"}) {
      const Status status = DecodeManifest(fmt::format("{{\"{}\": {}}}", field, deep)).status();
      EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
      EXPECT_NE(status.message().find("nests"), std::string::npos) << status.message();
    }
  }
}

TEST(ManifestTest, OddJsonIsCorruptNotACrash) {
  for (const char* text :
       {"", "[]", "{}", "3", "null", R"({"format":"cairn"})", R"({"format":"cairn","version":1})",
        R"({"format":"cairn","version":1,"run":3})", R"({"format":"cairn","version":"1"})"})
    EXPECT_FALSE(DecodeManifest(text).ok()) << text;
}

}  // namespace
}  // namespace cairn
