#include "ckpt/model/manifest.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

Manifest ExampleManifest() {
  Manifest manifest;
  manifest.run = "0123456789abcdef0123456789abcdef";
  manifest.step = 20;
  manifest.topology = {2, 2, 1, 1};
  manifest.model.architecture = "gpt2";
  manifest.model.layernorm_epsilon = 1e-5;
  manifest.state = {{"iteration", 20}, {"consumed_tokens", 640}};
  manifest.files = {{"shard-00000.h5", 4096, DigestOf("a")}, {"index.h5", 8192, DigestOf("b")}};
  manifest.catalog_bytes = 100;
  return manifest;
}

TEST(ManifestTest, RoundTrips) {
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
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 5");
  EXPECT_EQ(DecodeManifest(text).status().kind(), StatusKind::kNotSupported);
}

// Programs that know only version 3 would choose another step as the newest.
TEST(ManifestTest, ADescentNeedsVersion4) {
  for (const Descent& descent :
       {Descent{.branches = {{"ab", 10}, {"", -1}}}, Descent{.origin = {{"ab", 1, 30}}}}) {
    Manifest manifest = ExampleManifest();
    manifest.descent = descent;
    const std::string text = EncodeManifest(manifest);
    EXPECT_NE(text.find("\"version\": 4"), std::string::npos);
    const auto decoded = DecodeManifest(text);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(*decoded, manifest);
  }
}

// Written by the last Cairn with version 3, after 10, 20, 30, 40, 11 and 12.
constexpr char kVersion3[] = R"({
 "branches": [
  11,
  9
 ],
 "catalog": {
  "bytes": 319,
  "digest": "946cc1200293a9df50367792c866b87c",
  "offset": 77824
 },
 "digest": "31a83bcd8491a4535e066c227db90115",
 "files": [
  {
   "bytes": 73728,
   "digest": "8618419ca04e4b76a9888aa7e016633f",
   "name": "shard-00001.h5"
  },
  {
   "bytes": 73728,
   "digest": "3df46e2357d42c8bf395b52f37b403b3",
   "name": "shard-00002.h5"
  },
  {
   "bytes": 81920,
   "digest": "f00143354a882677ffbb46e2cf1e476e",
   "name": "index.h5"
  }
 ],
 "format": "cairn",
 "history": [],
 "model": {},
 "run": "6ffc346b2bd62f8d85487513d3d74991",
 "state": {
  "iteration": 9,
  "mesh": "1 rank"
 },
 "step": 9,
 "topology": {
  "dp": 1,
  "pp": 1,
  "tp": 1,
  "zero": 0
 },
 "version": 3
}
)";

TEST(ManifestTest, ReadsBranchesOfVersion3) {
  const auto decoded = DecodeManifest(kVersion3);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->descent.branches, (std::vector<EarlierBranch>{{"", 8}, {"", 8}}));
  EXPECT_EQ(EncodeManifest(*decoded), kVersion3);
}

// Programs that know only version 1 would look for the shards in the step's own directory.
TEST(ManifestTest, ShardsElsewhereNeedVersion2) {
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

// Printing JSON nested deeper than the stack allows would crash.
TEST(ManifestTest, DeepNestingIsCorrupt) {
  for (const int depth : {100, 1'000'000}) {
    const std::string deep = std::string(depth, '[') + std::string(depth, ']');
    for (const char* field : {"format", "model"}) {
      const Status status = DecodeManifest(fmt::format("{{\"{}\": {}}}", field, deep)).status();
      EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
      EXPECT_NE(status.message().find("nested"), std::string::npos) << status.message();
    }
  }
}

TEST(ManifestTest, UnexpectedJsonIsRefused) {
  for (const char* text :
       {"", "[]", "{}", "3", "null", R"({"format":"cairn"})", R"({"format":"cairn","version":1})",
        R"({"format":"cairn","version":1,"run":3})", R"({"format":"cairn","version":"1"})"})
    EXPECT_FALSE(DecodeManifest(text).ok()) << text;
}

}  // namespace
}  // namespace cairn
