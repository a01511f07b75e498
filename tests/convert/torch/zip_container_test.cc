#include "convert/torch/zip_container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "convert/torch/torch_file.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(i < 8 ? value >> 8 * i : 0);
  return text;
}

// A record as the central directory describes it, right or wrong.
struct Record {
  std::string name;
  std::string data;
  uint16_t method = 0;
  uint16_t flags = 0x808;
  uint32_t crc = 0;
  std::optional<uint64_t> bytes, packed, header;
};

struct Zip {
  std::vector<Record> records;
  std::optional<uint64_t> count, directory_offset, directory_bytes;
  std::string between;  // the directory and the end
  std::string comment;

  std::string Bytes() const {
    std::string file, directory;
    for (const Record& r : records) {
      const uint64_t header = file.size();
      file += "PK\3\4" + Little(0, 2) + Little(r.flags, 2) + Little(r.method, 2) + Little(0, 16) +
              Little(r.name.size(), 2) + Little(3, 2) + r.name + "FBZ" + r.data;
      directory += "PK\1\2" + Little(0, 4) + Little(r.flags, 2) + Little(r.method, 2) + Little(0, 4) +
                   Little(r.crc, 4) + Little(r.packed.value_or(r.data.size()), 4) +
                   Little(r.bytes.value_or(r.data.size()), 4) + Little(r.name.size(), 2) + Little(0, 12) +
                   Little(r.header.value_or(header), 4) + r.name;
    }
    const uint64_t at = file.size();
    return file + directory + between + "PK\5\6" + Little(0, 4) + Little(count.value_or(records.size()), 2) +
           Little(count.value_or(records.size()), 2) + Little(directory_bytes.value_or(directory.size()), 4) +
           Little(directory_offset.value_or(at), 4) + Little(comment.size(), 2) + comment;
  }
};

Zip Sound() {
  return {.records = {{.name = "a/data.pkl", .data = "\x80\2N."}, {.name = "a/data/0", .data = "12345678"}}};
}

class ZipContainerTest : public testing::Test {
 protected:
  Result<ZipContainer> Read(const std::string& bytes, uint64_t before = 0) {
    FileSystem& fs = FileSystem::Posix();
    path_ = JoinPath(dir_.path(), "file.pt");
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    auto opened = fs.OpenForRead(path_);
    file_ = std::move(opened.value());
    return ZipContainer::Read(*file_, {before, bytes.size()});
  }
  std::string Refusal(const std::function<void(Zip&)>& spoil) {
    Zip zip = Sound();
    spoil(zip);
    return Read(zip.Bytes()).status().message();
  }

  TempDir dir_;
  std::string path_;
  std::unique_ptr<File> file_;
};

TEST_F(ZipContainerTest, FindsRecordsByNameWithoutTheArchivesPrefix) {
  const auto zip = Read(Sound().Bytes());
  ASSERT_TRUE(zip.ok()) << zip.status().message();
  EXPECT_EQ(zip->records().size(), 2u);
  EXPECT_EQ(zip->Find("a/data.pkl"), nullptr);
  ASSERT_NE(zip->Find("data/0"), nullptr);
  EXPECT_EQ(*ReadRecord(*file_, *zip->Find("data/0"), 100), "12345678");
  EXPECT_FALSE(ReadRecord(*file_, *zip->Find("data/0"), 7).ok());
}

TEST_F(ZipContainerTest, ReadsAContainerInsideAnotherFile) {
  const auto zip = Read("before" + Sound().Bytes(), 6);
  ASSERT_TRUE(zip.ok()) << zip.status().message();
  EXPECT_EQ(*ReadRecord(*file_, *zip->Find("data/0"), 100), "12345678");
}

TEST_F(ZipContainerTest, RefusesUnusualContainers) {
  using testing::HasSubstr;
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].method = 8; }), HasSubstr("data/0 is compressed"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].flags |= 1; }), HasSubstr("encrypted"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].name = "a/data.pkl"; }), HasSubstr("twice"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].header = 0; }), HasSubstr("overlaps another one"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[0].bytes = z.records[0].packed = 20; }),
              HasSubstr("overlaps another one"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].bytes = z.records[1].packed = 9; }),
              HasSubstr("reaches out"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].bytes = z.records[1].packed = UINT32_MAX - 1; }),
              HasSubstr("reaches out"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].header = 1 << 30; }), HasSubstr("outside"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].header = 5; }), HasSubstr("overlaps another one"));
  EXPECT_THAT(Refusal([](Zip& z) { z.records[1].packed = 4; }), HasSubstr("4 compressed"));
  EXPECT_THAT(Refusal([](Zip& z) { z.count = 1; }), HasSubstr("more than its"));
  EXPECT_THAT(Refusal([](Zip& z) { z.count = 3; }), HasSubstr("directory"));
  EXPECT_THAT(Refusal([](Zip& z) { z.count = UINT16_MAX; }), HasSubstr("zip64"));
  EXPECT_THAT(Refusal([](Zip& z) { z.directory_offset = 1 << 20; }), HasSubstr("outside"));
  EXPECT_THAT(Refusal([](Zip& z) { z.directory_bytes = 1 << 20; }), HasSubstr("outside"));
  for (const char* name : {"a/../../etc/passwd", "b/data/0", "/data/0", "a//0", "../data/0"})
    EXPECT_THAT(Refusal([&](Zip& z) { z.records[1].name = name; }), HasSubstr("name")) << name;
}

TEST_F(ZipContainerTest, RefusesInconsistentZip64Ends) {
  size_t comment = 0;
  const auto zip64 = [&](uint64_t count, uint64_t bytes, uint64_t offset, std::optional<uint64_t> at) {
    Zip zip = Sound();
    const uint64_t end = zip.Bytes().size() - 22;
    zip.between = "PK\6\6" + Little(44, 8) + Little(0, 12) + Little(count, 8) + Little(count, 8) +
                  Little(bytes, 8) + Little(offset, 8) + "PK\6\7" + Little(0, 4) +
                  Little(at.value_or(end), 8) + Little(1, 4);
    zip.count = UINT16_MAX;  // the zip64 end has it
    zip.comment.assign(comment, 'c');
    return Read(zip.Bytes());
  };
  const uint64_t offset = 2 * 33 + 10 + 8 + 4 + 8, bytes = 2 * 46 + 10 + 8;
  EXPECT_TRUE(zip64(2, bytes, offset, {}).ok()) << zip64(2, bytes, offset, {}).status().message();
  EXPECT_FALSE(zip64(uint64_t{1} << 60, bytes, offset, {}).ok());
  EXPECT_FALSE(zip64(2, UINT64_MAX, offset, {}).ok());
  EXPECT_FALSE(zip64(2, bytes, UINT64_MAX - 3, {}).ok());
  EXPECT_FALSE(zip64(2, bytes, offset, UINT64_MAX).ok());
  EXPECT_FALSE(zip64(2, bytes, offset, 0).ok());
  for (comment = 4050; comment < 4080; ++comment)  // the end is in the window, and its locator just outside
    EXPECT_TRUE(zip64(2, bytes, offset, {}).ok()) << comment;
}

TEST_F(ZipContainerTest, SurvivesEveryTruncationAndFlippedByte) {
  const std::string whole = Sound().Bytes();
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_FALSE(Read(whole.substr(0, i)).ok()) << i;
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const auto zip = Read(damaged);
      for (size_t k = 0; zip.ok() && k < zip->records().size(); ++k)
        EXPECT_LE(zip->records()[k].file_offset + zip->records()[k].bytes, damaged.size());
    }
  }
}

TEST_F(ZipContainerTest, NamesAWrongChecksum) {
  Zip zip = Sound();
  zip.records[0].crc = 1;
  const auto read = Read(zip.Bytes());
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(ReadRecord(*file_, *read->Find("data.pkl"), 100).status().message(),
              testing::HasSubstr("checksum"));
}

TEST_F(ZipContainerTest, RefusesStoragesSmallerThanTheirTensors) {
  const auto open = [&](uint64_t elements, const std::string& offset, const std::string& size) {
    const auto text = [](const std::string& t) { return "X" + Little(t.size(), 4) + t; };
    Zip zip = Sound();
    zip.records[0].data =
        "\x80\2"
        "ctorch._utils\n_rebuild_tensor_v2\n((" +
        text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "J" + Little(elements, 4) +
        "tQ" + offset + size +
        "\x85K\x01\x85\x89Nt"
        "R.";
    (void)Read(zip.Bytes());
    auto torch = TorchFile::Open(FileSystem::Posix(), "", path_);
    if (!torch.ok()) return torch.status();
    return torch->Locate(*torch->root().tensor).status();
  };
  EXPECT_TRUE(open(2, std::string("K\0", 2), "K\2").ok()) << open(2, std::string("K\0", 2), "K\2").message();
  EXPECT_THAT(open(3, std::string("K\0", 2), "K\2").message(), testing::HasSubstr("should have 12"));
  EXPECT_THAT(open(2, "K\1", "K\2").message(), testing::HasSubstr("reaches beyond"));
  EXPECT_THAT(open(2, std::string("K\0", 2), "J" + Little(INT32_MAX, 4)).message(),
              testing::HasSubstr("reaches beyond"));
  EXPECT_FALSE(open(2, "\x8a\x08" + Little(uint64_t{1} << 62, 8), "K\1").ok());
}

}  // namespace
}  // namespace cairn
