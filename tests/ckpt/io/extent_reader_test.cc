// Extents of files that are in the page cache, are not, may not be read past it, or have no descriptor.
#include "ckpt/io/extent_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kFileBytes = 3 * kExtentBytes + 1234;  // ends inside a page

enum class ExtentWay { kCached, kCold, kThroughTheCache, kPastTheCache, kUnseenCache, kForeign };

std::string NameOf(ExtentWay way) {
  return std::array{
      "Cached", "Cold", "ThroughTheCache", "PastTheCache", "UnseenCache", "Foreign"}[static_cast<size_t>(
      way)];
}

struct ExtentFile {
  ExtentFile() : content(kFileBytes, ' ') {
    std::mt19937_64 rng(7);
    for (size_t i = 0; i + 8 <= content.size(); i += 8) {
      const uint64_t value = rng();
      std::memcpy(&content[i], &value, 8);
    }
    EXPECT_TRUE(WriteSmallFile(FileSystem::Posix(), path, content).ok());
  }

  void DropFromCache() const {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ::close(fd);
  }

  std::string Content(uint64_t begin, uint64_t end) const { return content.substr(begin, end - begin); }

  const TempDir dir{TempDir::Place::kDisk};
  const std::string path = dir / "file";
  std::string content;
};

class ExtentReaderTest : public testing::TestWithParam<ExtentWay> {
 protected:
  void SetUp() override {
    if (GetParam() == ExtentWay::kCold || GetParam() == ExtentWay::kThroughTheCache) file_.DropFromCache();
  }

  FileSystem& fs() { return GetParam() == ExtentWay::kForeign ? foreign_ : FileSystem::Posix(); }

  ExtentReaderOptions Options() const {
    ExtentReaderOptions options{.depth = 3};
    if (GetParam() == ExtentWay::kThroughTheCache) options.direct = Direct::kOff;
    if (GetParam() == ExtentWay::kPastTheCache) options.direct = Direct::kOn;
    if (GetParam() == ExtentWay::kUnseenCache) options.look_in_cache = false;
    return options;
  }

  // A range of any alignment that may be read past the cache: the last page cannot.
  std::pair<uint64_t, uint64_t> AnyRange(std::mt19937_64& rng) const {
    const uint64_t last = GetParam() == ExtentWay::kPastTheCache ? PageDown(kFileBytes) : kFileBytes;
    const uint64_t begin = rng() % 4 == 0 ? rng() % (last / kPageBytes) * kPageBytes : rng() % last;
    const uint64_t longest = std::min(last - begin, kExtentBytes);
    if (rng() % 3 == 0) return {begin, begin + longest};
    return {begin, begin + 1 + rng() % longest};
  }

  const ExtentFile file_;
  FaultyFileSystem foreign_{FileSystem::Posix()};  // its files have no descriptor
};

INSTANTIATE_TEST_SUITE_P(Ways, ExtentReaderTest,
                         testing::Values(ExtentWay::kCached, ExtentWay::kCold, ExtentWay::kThroughTheCache,
                                         ExtentWay::kPastTheCache, ExtentWay::kUnseenCache,
                                         ExtentWay::kForeign),
                         [](const auto& info) { return NameOf(info.param); });

std::string ExtentText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_P(ExtentReaderTest, ReadsTheBytesOfEveryExtent) {
  std::mt19937_64 rng(3);
  OpenFiles files(fs(), file_.dir.path());
  for (const bool map : {true, false}) {
    ExtentReaderOptions options = Options();
    options.map = map;
    ExtentReader reader(files, options);
    std::map<uint64_t, std::pair<uint64_t, uint64_t>> started;
    for (uint64_t tag = 0; tag < 30 || reader.waiting() > 0;) {
      while (tag < 30 && !reader.full()) {
        const auto [begin, end] = AnyRange(rng);
        started[tag] = {begin, end};
        reader.Start({.file = "file", .begin = begin, .end = end, .file_bytes = kFileBytes, .tag = tag});
        ++tag;
      }
      ExtentReader::Finished done = reader.Wait();
      ASSERT_TRUE(done.status.ok()) << done.status.message();
      EXPECT_TRUE(map || !done.mapped);
      const auto [begin, end] = started.at(done.tag);
      EXPECT_TRUE(ExtentText(done.bytes) == file_.Content(begin, end)) << begin << " to " << end;
      reader.Recycle(std::move(done.memory));
    }
  }
}

TEST_P(ExtentReaderTest, LeavesCachedExtentsToTheCaller) {
  OpenFiles files(fs(), file_.dir.path());
  ExtentReaderOptions options = Options();
  options.leave_cached = true;
  ExtentReader reader(files, options);
  for (const auto& [begin, end] :
       {std::pair(kPageBytes, 3 * kPageBytes), std::pair(uint64_t{100}, kPageBytes)}) {
    reader.Start({.file = "file", .begin = begin, .end = end, .file_bytes = kFileBytes});
    const ExtentReader::Finished done = reader.Wait();
    ASSERT_TRUE(done.status.ok()) << done.status.message();
    EXPECT_TRUE(done.cached || GetParam() != ExtentWay::kCached);
    EXPECT_FALSE(done.cached && GetParam() >= ExtentWay::kPastTheCache);  // nobody looked there
    std::vector<std::byte> bytes(done.bytes.begin(), done.bytes.end());
    if (done.cached) {
      EXPECT_TRUE(bytes.empty());
      bytes.resize(end - begin);
      ASSERT_TRUE(done.cached->ReadAt(begin, bytes).ok());
    }
    EXPECT_TRUE(ExtentText(bytes) == file_.Content(begin, end)) << begin;
  }
}

TEST_P(ExtentReaderTest, ErrorsNameATruncatedOrMissingFile) {
  std::filesystem::resize_file(file_.path, kExtentBytes + 100);
  OpenFiles files(fs(), file_.dir.path());
  ExtentReader reader(files, Options());
  // By an old catalog, and by the caller's knowledge of the file.
  for (const uint64_t file_bytes : {kFileBytes, kExtentBytes + 100}) {
    reader.Start(
        {.file = "file", .begin = kExtentBytes, .end = 2 * kExtentBytes, .file_bytes = file_bytes, .tag = 5});
    const ExtentReader::Finished done = reader.Wait();
    EXPECT_EQ(done.tag, 5u);
    EXPECT_EQ(done.status.kind(), StatusKind::kCorrupt);
    EXPECT_NE(done.status.message().find(file_.path), std::string::npos) << done.status.message();
  }
  reader.Start({.file = "absent", .begin = 0, .end = 10, .tag = 6});
  const ExtentReader::Finished done = reader.Wait();
  EXPECT_EQ(done.tag, 6u);
  EXPECT_EQ(done.status.kind(), StatusKind::kNotFound);
  EXPECT_NE(done.status.message().find("absent"), std::string::npos) << done.status.message();
}

TEST(ExtentReader, ReadsDoNotFillThePageCache) {
  const ExtentFile file;
  file.DropFromCache();
  const auto direct = FileSystem::Posix().OpenForRead(file.path, Direct::kAuto);
  const auto cached = [&] { return *CachedBytes(**direct, 0, kFileBytes); };
  if (!(*direct)->direct() || cached() > 0) GTEST_SKIP() << "this file system keeps what it reads";
  OpenFiles files(FileSystem::Posix(), file.dir.path());
  ExtentReader reader(files, {});
  reader.Start({.file = "file", .begin = 5, .end = 9 << 10, .file_bytes = kFileBytes});
  EXPECT_FALSE(reader.Wait().mapped);
  EXPECT_EQ(cached(), 0u);
  reader.Start({.file = "file", .begin = kFileBytes - 9000, .end = kFileBytes, .file_bytes = kFileBytes});
  EXPECT_TRUE(reader.Wait().status.ok());  // to the end of the last page: through the cache
  EXPECT_GT(cached(), 0u);
}

TEST(ExtentReader, BuffersOfSimilarSizesAreReused) {
  const ExtentFile file;
  OpenFiles files(FileSystem::Posix(), file.dir.path());
  ExtentReader reader(files, {});
  auto memory = reader.NewBuffer(100'000);
  const std::byte* const place = memory->data();
  reader.Recycle(std::move(memory));
  memory = reader.NewBuffer(120'000);
  EXPECT_EQ(memory->data(), place);
  EXPECT_LE(memory->capacity, 240'000U);
  reader.Recycle(std::move(memory));
  memory = reader.NewBuffer(30'000);
  EXPECT_GE(memory->capacity, 30'000U);
  EXPECT_LT(memory->capacity, 100'000U);  // the recycled one is more than twice as large
}

TEST(ExtentReader, AFailedReadDoesNotAffectOthers) {
  const ExtentFile file;
  FaultyFileSystem faulty(FileSystem::Posix());
  OpenFiles files(faulty, file.dir.path());
  ExtentReader reader(files, {});
  reader.Start({.file = "file", .begin = 0, .end = 10});
  EXPECT_TRUE(reader.Wait().status.ok());
  faulty.SetBudget(faulty.operations());
  reader.Start({.file = "file", .begin = 10, .end = 20});
  const ExtentReader::Finished failed = reader.Wait();
  EXPECT_EQ(failed.status.kind(), StatusKind::kIoError);
  EXPECT_NE(failed.status.message().find("injected fault"), std::string::npos);
  faulty.SetBudget(-1);
  reader.Start({.file = "file", .begin = 20, .end = 30});
  EXPECT_TRUE(ExtentText(reader.Wait().bytes) == file.Content(20, 30));
}

TEST(JoinsExtent, JoinsNeighboursUpToOneLargeRead) {
  EXPECT_TRUE(JoinsExtent(0, 100, 100, 200));
  EXPECT_TRUE(JoinsExtent(0, 100, 100 + (64 << 10), 200 << 10));
  EXPECT_FALSE(JoinsExtent(0, 100, 101 + (64 << 10), 200 << 10));  // too far away
  EXPECT_FALSE(JoinsExtent(0, 100, 99, 200));                      // before its end
  EXPECT_TRUE(JoinsExtent(4096, 5000, 5000, 4096 + kExtentBytes));
  EXPECT_FALSE(JoinsExtent(4095, 5000, 5000, 4096 + kExtentBytes));  // in whole pages too large
}

}  // namespace
}  // namespace cairn
