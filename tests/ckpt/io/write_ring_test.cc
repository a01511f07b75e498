#include "ckpt/io/write_ring.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

void SubmitPage(WriteRing& ring, File& file) {
  auto buffer = ring.Acquire();
  buffer->size = kPageBytes;
  std::memset(buffer->data(), 1, buffer->size);
  ring.Submit(&file, 0, std::move(buffer));
}

// A reshape shares one ring between its stages. If one stage finishes and drains the ring, the next must
// still get the error of its own write, or a step without those bytes would be published.
TEST(WriteRingTest, AnErrorReachesAllUsersOfTheRing) {
  const TempDir temp(TempDir::Place::kDisk);
  FaultyFileSystem fs(FileSystem::Posix());
  WriteRing ring(fs, {.buffer_bytes = kPageBytes});
  const auto file = fs.Create(temp / "file");
  ASSERT_TRUE(file.ok());
  SubmitPage(ring, **file);
  EXPECT_TRUE(ring.Drain().ok());
  fs.SetBudget(0);
  SubmitPage(ring, **file);
  const uint64_t mark = ring.Mark();
  const Status drained = ring.Drain();
  EXPECT_EQ(drained.kind(), StatusKind::kIoError);
  fs.SetBudget(-1);
  EXPECT_EQ(ring.Await(mark).message(), drained.message());
  EXPECT_EQ(ring.error().message(), drained.message());
  SubmitPage(ring, **file);
  EXPECT_EQ(ring.Drain().message(), drained.message());
}

// Holds writes back until it is opened.
class GatedFileSystem final : public WrappedFileSystem {
 public:
  explicit GatedFileSystem(FileSystem& base) : WrappedFileSystem(base) {}
  void Open() { gate_.set_value(); }

 private:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind == FsCall::Kind::kWrite) opened_.wait();
    return run();
  }

  std::promise<void> gate_;
  std::shared_future<void> opened_ = gate_.get_future().share();
};

// Hangs if the one that awaits holds the ring's lock.
TEST(WriteRingTest, OtherThreadsSubmitWhileOneWaits) {
  const TempDir temp(TempDir::Place::kMemory);
  GatedFileSystem fs(FileSystem::Posix());
  WriteRing ring(fs, {.buffer_bytes = kPageBytes});
  const auto file = fs.Create(temp / "file");
  ASSERT_TRUE(file.ok());
  SubmitPage(ring, **file);
  std::vector<std::thread> waiting;
  for (int i = 0; i < 2; ++i)
    waiting.emplace_back([&ring, mark = ring.Mark()] { EXPECT_TRUE(ring.Await(mark).ok()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that both wait, as a rule
  SubmitPage(ring, **file);
  fs.Open();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_TRUE(ring.Drain().ok());
}

}  // namespace
}  // namespace cairn
