#include "convert/formats/hugging_face/safetensors_writer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::string JsonOf(const SafetensorsLayout& layout) { return layout.header.substr(8); }

TEST(SafetensorsLayoutTest, WideTypesComeFirstThenNames) {
  const auto layout = LayOutSafetensors({{"b", Dtype::kF16, {2, 3}},
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
  EXPECT_EQ(JsonOf(*layout).substr(0, expected.size()), expected);
  EXPECT_EQ(JsonOf(*layout).find_first_not_of(' ', expected.size()), std::string::npos);
  EXPECT_EQ(layout->header.size() % 8, 0u);
  uint64_t length;
  std::memcpy(&length, layout->header.data(), 8);
  EXPECT_EQ(length + 8, layout->header.size());
  EXPECT_EQ(layout->offsets[2], layout->header.size());
  EXPECT_EQ(layout->file_bytes, layout->header.size() + 27);
}

TEST(SafetensorsLayoutTest, ANameTwiceIsRefused) {
  const auto layout = LayOutSafetensors({{"a", Dtype::kF16, {1}}, {"a", Dtype::kF16, {1}}}, {});
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_FALSE(LayOutSafetensors({{"__metadata__", Dtype::kF16, {1}}}, {}).ok());
}

class SafetensorsWriterTest : public testing::Test {
 protected:
  std::unique_ptr<SafetensorsWriter> Create() {
    auto writer = SafetensorsWriter::Create(fs_, ring_, path_,
                                            {{"x", Dtype::kU8, {4}}, {"y", Dtype::kU8, {2}}}, {{"k", "00"}});
    EXPECT_TRUE(writer.ok());
    return std::move(writer).value();
  }
  static std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  const std::string path_ = dir_ / "model.safetensors";
  WriteRing ring_{fs_};
};

TEST_F(SafetensorsWriterTest, PartsInAnyOrderMakeTheFile) {
  const auto writer = Create();
  ASSERT_TRUE(writer->Write(1, 0, Bytes("yy")).ok());
  ASSERT_TRUE(writer->Write(0, 2, Bytes("cd")).ok());
  ASSERT_TRUE(writer->Write(0, 0, Bytes("ab")).ok());
  ASSERT_TRUE(writer->Finish({{"k", "42"}}).ok());
  const auto text = ReadSmallFile(fs_, path_, 1 << 20);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->size(), writer->file_bytes());
  EXPECT_TRUE(text->ends_with("abcdyy"));
  EXPECT_NE(text->find(R"("k":"42")"), std::string::npos);
}

TEST_F(SafetensorsWriterTest, MissingBytesAreAnError) {
  const auto writer = Create();
  ASSERT_TRUE(writer->Write(0, 0, Bytes("abcd")).ok());
  EXPECT_EQ(writer->Finish({{"k", "00"}}).kind(), StatusKind::kInvalidArgument);
}

TEST_F(SafetensorsWriterTest, BytesBeyondATensorAreAnError) {
  EXPECT_EQ(Create()->Write(0, 2, Bytes("abc")).kind(), StatusKind::kInvalidArgument);
}

TEST_F(SafetensorsWriterTest, AHeaderOfAnotherLengthIsAnError) {
  const auto writer = Create();
  ASSERT_TRUE(writer->Write(0, 0, Bytes("abcd")).ok());
  ASSERT_TRUE(writer->Write(1, 0, Bytes("yy")).ok());
  EXPECT_EQ(writer->Finish({{"k", "0123456789"}}).kind(), StatusKind::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
