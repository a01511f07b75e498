#include "ckpt/io/write_ring.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

void SubmitPage(WriteRing& ring, File& file) {
  auto buffer = ring.Acquire();
  buffer->size = kPageBytes;
  std::memset(buffer->data(), 1, buffer->size);
  ring.Submit(&file, 0, std::move(buffer));
}

// A reshape shares one ring between its stages; where one stage is done and drains the ring, the next must
// still hear that its write failed, or what was never written would be published.
TEST(WriteRingTest, AnErrorStaysForAllWhoShareTheRing) {
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

}  // namespace
}  // namespace cairn
