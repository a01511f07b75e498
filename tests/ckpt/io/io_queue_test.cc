#include "ckpt/io/io_queue.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <random>

#include "ckpt/io/write_ring.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

// Both engines must behave alike. If the kernel refuses io_uring, the second run reports it and tests
// threads.
class IoQueueTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<IoQueue> Queue(int depth = 4) {
    return fs_.NewQueue({.depth = depth, .uring = GetParam()});
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir temp_{TempDir::Place::kDisk};
};

TEST_P(IoQueueTest, WritesInAnyOrderReadBack) {
  std::vector<std::unique_ptr<WriteRing::Buffer>> blocks;
  std::mt19937 random(1);
  constexpr uint64_t kBlock = 64 << 10;
  for (int i = 0; i < 40; ++i) {
    blocks.push_back(std::make_unique<WriteRing::Buffer>(kBlock));
    for (uint64_t b = 0; b < kBlock; ++b) blocks[i]->data()[b] = static_cast<std::byte>(random());
  }
  for (Direct direct : {Direct::kAuto, Direct::kOff}) {
    const std::string path = temp_ / fmt::format("file-{}", static_cast<int>(direct));
    auto file = fs_.Create(path, direct);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->Allocate(40 * kBlock).ok());
    const auto queue = Queue(3);
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (queue->in_flight() == queue->depth()) {
        EXPECT_TRUE(queue->Wait().status.ok());
      }
      const size_t at = (i * 7) % blocks.size();
      queue->Write(**file, at * kBlock, {blocks[at]->data(), kBlock}, at);
    }
    while (queue->in_flight() > 0) EXPECT_TRUE(queue->Wait().status.ok());
    WriteRing::Buffer back(kBlock);
    for (size_t i = 0; i < blocks.size(); ++i) {
      queue->Read(**file, i * kBlock, {back.data(), kBlock}, i);
      const IoQueue::Completion done = queue->Wait();
      EXPECT_EQ(done.tag, i);
      EXPECT_TRUE(done.status.ok()) << done.status.message();
      EXPECT_EQ(std::memcmp(back.data(), blocks[i]->data(), kBlock), 0) << queue->engine();
    }
  }
}

TEST_P(IoQueueTest, AReadPastTheEndIsTruncationAndNamesTheFile) {
  const std::string path = temp_ / "short";
  ASSERT_TRUE(WriteSmallFile(fs_, path, std::string(5000, 'x')).ok());
  const auto file = fs_.OpenForRead(path);
  const auto queue = Queue();
  std::vector<std::byte> out(8192);
  queue->Read(**file, 0, out, 9);
  const IoQueue::Completion done = queue->Wait();
  EXPECT_EQ(done.tag, 9u);
  EXPECT_EQ(done.status.kind(), StatusKind::kCorrupt);
  EXPECT_NE(done.status.message().find(path + " ends at byte 5000"), std::string::npos)
      << done.status.message();
}

// A limit on the size of files makes the kernel write less than it was asked to, and then refuse the rest.
TEST_P(IoQueueTest, AShortWriteContinuesAndTheErrorAfterItIsReportedOnce) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{100 << 10, before.rlim_max};
  auto file = fs_.Create(temp_ / "limited");
  ASSERT_TRUE(file.ok());
  const auto queue = Queue();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::vector<std::byte> bytes(300 << 10, std::byte{7});
  queue->Write(**file, 0, bytes, 1);
  const IoQueue::Completion done = queue->Wait();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(done.status.kind(), StatusKind::kIoError);
  EXPECT_NE(done.status.message().find("limited"), std::string::npos) << done.status.message();
  EXPECT_EQ(queue->in_flight(), 0);
}

TEST_P(IoQueueTest, AFailedWriteIsAnError) {
  auto file = fs_.OpenForRead("/proc/self/exe");
  ASSERT_TRUE(file.ok());
  const auto queue = Queue();
  const std::vector<std::byte> bytes(4096);
  queue->Write(**file, 0, bytes, 1);  // opened for reading: EBADF
  EXPECT_EQ(queue->Wait().status.kind(), StatusKind::kIoError);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoQueueTest, testing::Values(true, false),
                         [](const auto& info) { return info.param ? "Uring" : "Threads"; });

TEST(PosixFile, AllocateSetsTheLengthExactly) {
  const TempDir temp(TempDir::Place::kMemory);
  FileSystem& fs = FileSystem::Posix();
  auto file = fs.Create(temp / "sized");
  ASSERT_TRUE((*file)->Allocate(12345).ok());
  EXPECT_EQ(fs.Stat(temp / "sized")->bytes, 12345u);
  ASSERT_TRUE((*file)->Allocate(100).ok());
  EXPECT_EQ(fs.Stat(temp / "sized")->bytes, 100u);
}

}  // namespace
}  // namespace cairn
