#include "convert/formats/hugging_face/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "ckpt/io/strict_json.h"
#include "convert/formats/hugging_face/safetensors_layout.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr uint64_t kDataOffset = 1000;

Result<SafetensorsHeader> Parse(std::string_view json, uint64_t data_bytes) {
  return ParseSafetensorsHeader(json, kDataOffset, kDataOffset + data_bytes);
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

TEST(SafetensorsHeaderTest, SortsTensorsByOffset) {
  const auto header =
      Parse("{" + Entry("b", "F16", "[2,3]", "[8,20]") + "," + Entry("a", "I64", "[]", "[0,8]") + "," +
                Entry("empty", "F32", "[0,7]", "[8,8]") + R"(,"__metadata__":{"format":"pt","k":"v"}}   )",
            20);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].shape.rank(), 0);
  EXPECT_EQ(header->tensors[1].name, "empty");
  EXPECT_EQ(header->tensors[2].extents[0].file_offset, kDataOffset + 8);
  EXPECT_EQ(header->tensors[2].dtype, Dtype::kF16);
  EXPECT_EQ(header->metadata.at("k"), "v");
}

TEST(SafetensorsHeaderTest, KeepsTheNamesOfUnknownTypes) {
  const auto header = Parse(
      "{" + Entry("six", "F6_E2M3", "[8]", "[0,6]") + "," + Entry("c", "C64", "[1]", "[6,14]") + "}", 14);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->tensors[0].unknown_type, "F6_E2M3");
  EXPECT_EQ(header->tensors[1].unknown_type, "C64");
}

// Torch has pairs of them, too.
TEST(SafetensorsHeaderTest, FourBitElementsAreStoredInPairs) {
  const auto header =
      Parse("{" + Entry("pairs", "F4", "[3,4]", "[0,6]") + "," + Entry("odd", "F4", "[4,3]", "[6,12]") + "," +
                Entry("scale", "F8_E8M0", "[2]", "[12,14]") + "}",
            14);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->tensors[0].dtype, Dtype::kF4x2);
  EXPECT_EQ(header->tensors[0].shape, (Dims{3, 2}));
  EXPECT_EQ(header->tensors[0].unknown_type, "");
  EXPECT_EQ(header->tensors[1].unknown_type, "F4");
  EXPECT_EQ(header->tensors[2].dtype, Dtype::kF8E8M0);
}

TEST(SafetensorsHeaderTest, NamesEveryInconsistency) {
  const std::string good = Entry("t", "F32", "[2]", "[0,8]");
  const std::string huge = "[0,18446744073709551615]";
  const std::tuple<std::string, const char*> cases[] = {
      {"", "does not start with {"},
      {"[]", "does not start with {"},
      {"{", "not JSON"},
      {"{" + good, "not JSON"},
      {"{" + good + "} x", "not JSON"},
      {"{" + good + "}{}", "not JSON"},
      {"{" + good + "," + good + "}", "t occurs twice"},
      {R"({"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "twice"},
      {R"({"t":{"dtype":"F32","shape":[2]}})", "lacks"},
      {R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", "lacks"},
      {R"({"t":{"shape":[2],"data_offsets":[0,8]}})", "lacks"},
      {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "lacks"},
      {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", "more than two"},
      {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1}})", "unknown field extra"},
      {R"({"t":{"dtype":1,"shape":[2],"data_offsets":[0,8]}})", "a number"},
      {R"({"t":{"dtype":"F32","shape":"2","data_offsets":[0,8]}})", "a text"},
      {R"({"t":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "a negative number"},
      {R"({"t":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "a fraction"},
      {R"({"t":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", "a list"},
      {R"({"t":{"dtype":"F32","shape":[null],"data_offsets":[0,8]}})", "null"},
      {R"({"t":{"dtype":{"a":1},"shape":[2],"data_offsets":[0,8]}})", "an object"},
      {R"({"t":[1]})", "a list"},
      {R"({"t":7})", "a number"},
      {R"({"__metadata__":{"k":1}})", "a number"},
      {R"({"__metadata__":{"k":{}}})", "an object"},
      {R"({"__metadata__":{"k":"v","k":"v"}})", "twice"},
      {"{" + Entry("t", "F33", "[2]", "[0,8]") + "}", "unknown dtype F33"},
      {"{" + Entry("t", "F32", "[2]", "[8,0]") + "}", "before it begins"},
      {"{" + Entry("t", "F32", "[3]", "[0,8]") + "}", "has 8 bytes"},
      {"{" + Entry("t", "F4", "[3]", "[0,1]") + "}", "has 1 bytes"},
      {"{" + Entry("t", "F32", "[4294967296,4294967296]", "[0,8]") + "}", "has 8 bytes"},
      {"{" + Entry("t", "F32", "[9223372036854775807,4]", huge) + "}", "bytes"},
      {"{" + Entry("t", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", "more than 8 dimensions"},
      {"{" + Entry("t", "F32", "[1]", "[4,8]") + "}", "a hole"},
      {"{" + Entry("a", "F32", "[2]", "[0,8]") + "," + Entry("b", "F32", "[1]", "[4,8]") + "}", "an overlap"},
      {"{" + Entry("a", "F32", "[1]", "[0,4]") + "}", "belong to no tensor"},
      {"{" + Entry("a", "F32", "[4]", "[0,16]") + "}", "truncated"},
      {"{}", "belong to no tensor"},
      {R"({"t":)" + std::string(1 << 20, '[') + "}", "a list"},
      {R"({"t":{"dtype":"F32","shape":)" + std::string(1 << 20, '[') + "}", "a list"},
      {"{" + std::string(1 << 20, '{'), "not JSON"},
      {R"({"__metadata__":)" + std::string(1 << 16, '{') + "}", "not JSON"},
  };
  for (const auto& [json, says] : cases) {
    const auto header = Parse(json, 8);
    ASSERT_FALSE(header.ok()) << json.substr(0, 100);
    EXPECT_THAT(header.status().message(), HasSubstr(says)) << json.substr(0, 100);
  }
}

// Sums of tensor sizes that wrap around 2^64 to the size of the file.
TEST(SafetensorsHeaderTest, RefusesOverflowingSizes) {
  std::string json = "{";
  const uint64_t step = uint64_t{1} << 59;
  for (uint64_t i = 0; i < 32; ++i)
    json += Entry(fmt::format("t{}", i), "U8", fmt::format("[{}]", step),
                  fmt::format("[{},{}]", i * step, (i + 1) * step)) +
            ",";
  json.back() = '}';
  EXPECT_FALSE(Parse(json, 0).ok());
}

// The header of a file of these tensors, with its length before it.
std::string HeaderOf(const std::vector<StoredArray>& entries, const SafetensorsMetadata& metadata) {
  return MakeSafetensorsStorages(entries, metadata).value()->Around({})[0].bytes;
}

class SafetensorsFileTest : public testing::Test {
 protected:
  Result<SafetensorsHeader> Read(const std::string& bytes) {
    (void)fs_.RemoveFile(path_);
    EXPECT_TRUE(WriteSmallFile(fs_, path_, bytes).ok());
    return ReadSafetensorsHeader(fs_, path_);
  }
  static std::string WithLength(uint64_t length, const std::string& rest) {
    return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  const std::string path_ = dir_ / "model.safetensors";
};

TEST_F(SafetensorsFileTest, ReadsTheWritersFiles) {
  const std::vector<StoredArray> entries = {{"a", Dtype::kF16, {2, 2}}, {"b", Dtype::kF32, {3}}};
  const std::string written = HeaderOf(entries, {{"k", "v"}});
  const auto header = Read(written + std::string(20, 'x'));
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "b");
  EXPECT_EQ(header->tensors[0].extents[0].file_offset, written.size());
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST_F(SafetensorsFileTest, WrongLengthsAllocateNothing) {
  for (const std::string& bytes : {std::string(), std::string("1234567"), WithLength(UINT64_MAX, "{}"),
                                   WithLength(uint64_t{1} << 40, "{}"), WithLength(99'999'999, "{}"),
                                   WithLength(3, "{}"), WithLength(0, "")}) {
    const auto header = Read(bytes);
    ASSERT_FALSE(header.ok());
    EXPECT_EQ(header.status().kind(), StatusKind::kCorrupt);
    EXPECT_THAT(header.status().message(), HasSubstr(path_));
  }
}

TEST_F(SafetensorsFileTest, DetectsEveryTruncation) {
  const std::string whole = HeaderOf({{"a", Dtype::kF16, {2, 2}}}, {}) + std::string(8, 'x');
  ASSERT_TRUE(Read(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(Read(whole.substr(0, size)).ok()) << size;
  EXPECT_FALSE(Read(whole + "x").ok());
}

// For any changed byte, the reader returns a header whose tensors all lie in the file, or an error.
TEST_F(SafetensorsFileTest, SurvivesEveryChangedByte) {
  const std::string written = HeaderOf({{"a", Dtype::kF16, {2, 2}}, {"b", Dtype::kF32, {1}}}, {{"k", "v"}});
  const std::string whole = written + std::string(12, 'x');
  std::mt19937_64 rng(5);
  for (int round = 0; round < 3000; ++round) {
    std::string json = written.substr(8);
    for (uint64_t i = 0; i < 1 + rng() % 3; ++i) json[rng() % json.size()] = static_cast<char>(rng());
    const auto header = ParseSafetensorsHeader(json, written.size(), whole.size());
    if (!header.ok()) continue;
    for (const StoredArray& tensor : header->tensors)
      ASSERT_LE(tensor.extents[0].file_offset + tensor.bytes(), whole.size());
  }
}

TEST(StrictJsonTest, RefusesDepthAndDuplicates) {
  EXPECT_TRUE(ParseStrictJson(R"({"a":[{"b":1},{"b":2}],"c":{"a":null}})").ok());
  EXPECT_THAT(ParseStrictJson(std::string(1 << 20, '[')).status().message(), HasSubstr("deep"));
  EXPECT_THAT(ParseStrictJson(R"({"a":{"b":1,"b":2}})").status().message(), HasSubstr("\"b\" occurs twice"));
  EXPECT_THAT(ParseStrictJson("{}x").status().message(), HasSubstr("byte"));
  EXPECT_THAT(ParseStrictJson("").status().message(), HasSubstr("not JSON"));
  EXPECT_FALSE(ParseStrictJson("{\"a\":\"\xff\"}").ok());
}

}  // namespace
}  // namespace cairn
