// Many short ranges must become few transfers: PagedFile writes them, WindowFile reads them.
#include <gtest/gtest.h>

#include "ckpt/io/paged_file.h"
#include "ckpt/io/window_file.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kFusedRows = 600, kColumnBytes = 2048, kFusedColumns = 3;

std::string BytesOf(uint64_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 >> 5);
  return text;
}

// Queries, keys and values that go into the rows of one fused matrix, one after another.
void WriteColumns(FileSystem& fs, const std::string& path, const std::string& expected, size_t max_waiting) {
  WriteRing ring(fs, {.buffer_bytes = 1 << 20, .in_flight = 4});
  WaitingPages waiting(max_waiting);
  const auto file = PagedFile::Create(fs, ring, waiting, path, expected.size(), Direct::kOff);
  ASSERT_TRUE(file.ok());
  for (uint64_t column = 0; column < kFusedColumns; ++column)
    for (uint64_t row = 0; row < kFusedRows; ++row) {
      const uint64_t at = (row * kFusedColumns + column) * kColumnBytes;
      ASSERT_TRUE((*file)->Write(at, std::as_bytes(std::span(expected)).subspan(at, kColumnBytes)).ok());
    }
  ASSERT_TRUE((*file)->Finish().ok());
}

TEST(PagedFileTransfersTest, ColumnsOfAMatrixAreWrittenTogether) {
  const TempDir dir;
  const std::string expected = BytesOf(kFusedRows * kFusedColumns * kColumnBytes);
  for (const size_t max_waiting : {4096, 64}) {
    FaultyFileSystem fs(FileSystem::Posix());
    const std::string path = dir / std::to_string(max_waiting);
    WriteColumns(fs, path, expected, max_waiting);
    EXPECT_EQ(*ReadSmallFile(FileSystem::Posix(), path, expected.size()), expected);
    if (max_waiting < 4096) continue;
    EXPECT_LT(fs.operations(), 12);  // 3.5 MB: create, allocate, 4 writes, sync, ...
  }
}

TEST(WindowFileTest, JoinsNearbyReadsAndReturnsTheirBytes) {
  const TempDir dir;
  const std::string expected = BytesOf(100'003);
  ASSERT_TRUE(WriteSmallFile(FileSystem::Posix(), dir / "file", expected).ok());
  FaultyFileSystem fs(FileSystem::Posix());
  const auto file = fs.OpenForRead(dir / "file");
  ASSERT_TRUE(file.ok());
  WindowFile windows(**file, expected.size());
  const auto read = [&](uint64_t offset, uint64_t bytes) {
    std::string text(bytes, '\0');
    const Status status = windows.ReadAt(offset, std::as_writable_bytes(std::span(text)));
    return status.ok() ? text : status.message();
  };
  const int64_t before = fs.operations();
  for (uint64_t at = 4096; at < 5000; at += 30) EXPECT_EQ(read(at, 30), expected.substr(at, 30));
  for (uint64_t at = expected.size() - 300; at < expected.size(); at += 20)
    EXPECT_EQ(read(at, 20), expected.substr(at, 20));
  EXPECT_EQ(read(4100, 7), expected.substr(4100, 7));
  EXPECT_EQ(fs.operations() - before, 2);
  EXPECT_EQ(read(0, 50'000), expected.substr(0, 50'000));
  EXPECT_NE(read(expected.size() - 3, 4).find("file"), std::string::npos);  // the error names it
}

}  // namespace
}  // namespace cairn
