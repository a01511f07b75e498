#include "tests/bench/bench_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/io/file_system.h"
#include "tests/bench/bench_memory.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using Engine = RawTransfer::Engine;

TEST(BenchDiskTest, EveryEngineWritesAndReadsTheSameBytes) {
  const TempDir dir;
  auto source = WarmBuffer::Make(3 * 65536 + kPageBytes), target = WarmBuffer::Make(3 * 65536 + kPageBytes);
  ASSERT_TRUE(source.ok() && target.ok());
  FillWithNoise(source->bytes(), 7);
  const bool direct = TakesDirect(dir.path()).value();
  for (const Engine engine : {Engine::kThreads, Engine::kUring}) {
    if (engine == Engine::kUring && !TakesUring()) continue;
    for (const bool past_cache : {false, direct}) {
      for (const int depth : {1, 3, 8}) {
        const RawTransfer how{.engine = engine, .depth = depth, .block = 65536, .direct = past_cache};
        const ScratchFile file(dir.path());
        ASSERT_TRUE(RawWrite(file.path(), source->bytes(), how).ok());
        std::ranges::fill(target->bytes(), std::byte{});
        ASSERT_TRUE(RawRead(file.path(), target->bytes(), how).ok());
        EXPECT_TRUE(std::ranges::equal(source->bytes(), target->bytes()));
        EXPECT_FALSE(RawWrite(file.path(), source->bytes(), how).ok()) << "nothing is overwritten";
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "scratch files are removed";
}

TEST(BenchDiskTest, AFileThatEndsEarlyIsNotAFastRead) {
  const TempDir dir;
  auto buffer = WarmBuffer::Make(8 * kPageBytes);
  ASSERT_TRUE(buffer.ok());
  const ScratchFile file(dir.path());
  ASSERT_TRUE(RawWrite(file.path(), buffer->bytes().first(kPageBytes), {.direct = false}).ok());
  EXPECT_FALSE(RawRead(file.path(), buffer->bytes(), {.direct = false}).ok());
  EXPECT_FALSE(RawRead(file.path(), buffer->bytes(), {Engine::kUring, 4, 65536, false}).ok());
}

TEST(BenchDiskTest, ReportsHowMuchOfAFileIsCached) {
  const TempDir dir;
  auto buffer = WarmBuffer::Make(64 * kPageBytes);
  ASSERT_TRUE(buffer.ok());
  const ScratchFile file(dir.path());
  ASSERT_TRUE(BufferedWrite(file.path(), buffer->bytes()).ok());
  ASSERT_TRUE(MakeWarm(file.path()).ok());
  EXPECT_EQ(ResidentBytes(file.path()).value(), 64 * kPageBytes);
  const Status cold = MakeCold(file.path());
  if (!cold.ok()) GTEST_SKIP() << cold.message();  // files of this directory live in memory
  EXPECT_EQ(ResidentBytes(file.path()).value(), 0u);
}

}  // namespace
}  // namespace cairn
