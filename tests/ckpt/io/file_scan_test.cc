#include "ckpt/io/file_scan.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

FileSystem& Disk() { return FileSystem::Posix(); }

std::string WriteRandom(const TempDir& dir, uint64_t bytes, std::string& content) {
  std::mt19937_64 rng(bytes);
  content.resize(bytes);
  for (char& c : content) c = static_cast<char>(rng());
  const std::string path = JoinPath(dir.path(), "file-" + std::to_string(bytes));
  EXPECT_TRUE(WriteSmallFile(Disk(), path, content).ok());
  return path;
}

void DropFromCache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
}

Result<std::string> Scan(FileSystem& fs, const std::string& path, uint64_t bytes, Direct direct,
                         bool may_map = true) {
  CAIRN_ASSIGN_OR_RETURN(const auto scan, FileScan::Open(fs, path, bytes, direct, may_map));
  std::mt19937_64 rng(1);
  std::string all;
  while (scan->offset() < bytes) {
    const uint64_t most = 1 + rng() % (3 << 20);
    CAIRN_ASSIGN_OR_RETURN(const auto next, scan->Next(most));
    EXPECT_TRUE(!next.empty() && next.size() <= most);
    all.append(reinterpret_cast<const char*>(next.data()), next.size());
    EXPECT_EQ(scan->offset(), all.size());
  }
  return all;
}

// Around a page and a window, in the cache and not.
TEST(FileScan, ReadsEveryByteInOrder) {
  const TempDir dir;
  for (uint64_t bytes : {0u, 1u, 4095u, 4096u, 4097u, 3u << 20, 4u << 20, (4u << 20) + 1, 33'000'000u}) {
    std::string content;
    const std::string path = WriteRandom(dir, bytes, content);
    for (Direct direct : {Direct::kAuto, Direct::kOff, Direct::kAuto}) {
      for (bool may_map : {true, false}) {
        const auto found = Scan(Disk(), path, bytes, direct, may_map);
        ASSERT_TRUE(found.ok()) << found.status().message();
        ASSERT_TRUE(*found == content) << bytes;
      }
      DropFromCache(path);
    }
  }
}

TEST(FileScan, ReadsOnlyTheRequestedRange) {
  const TempDir dir;
  std::string content;
  const std::string path = WriteRandom(dir, 9'000'000, content);
  DropFromCache(path);
  const auto found = Scan(Disk(), path, 8'388'609, Direct::kAuto);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(*found == content.substr(0, 8'388'609));
}

TEST(FileScan, AFileThatEndsTooEarlyIsAnError) {
  const TempDir dir;
  for (uint64_t bytes : {5000u, 4096u, 9'000'000u}) {
    std::string content;
    const std::string path = WriteRandom(dir, bytes, content);
    for (int cold = 0; cold < 2; ++cold) {
      EXPECT_EQ(Scan(Disk(), path, bytes + 5000, Direct::kAuto).status().kind(), StatusKind::kCorrupt)
          << bytes;
      DropFromCache(path);
    }
  }
}

}  // namespace
}  // namespace cairn
