// Extents taken in any order have the file's bytes, neighbours are one read, and neither little memory nor a
// failed read stops the others.
#include "ckpt/io/extents_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "tests/support/temp_dir.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

// Counts reads, and fails those of a file called "bad".
class CountedReads final : public WrappedFileSystem {
 public:
  CountedReads() : WrappedFileSystem(FileSystem::Posix()) {}
  std::atomic<int> reads = 0;

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind != FsCall::Kind::kRead) return run();
    ++reads;
    return call.path.ends_with("bad") ? IoError("{}: injected fault", call.path) : run();
  }
};

class ExtentsAheadTest : public testing::Test {
 protected:
  ExtentsAheadTest() {
    std::mt19937_64 rng(5);
    for (char& c : content_) c = static_cast<char>(rng());
    for (const std::string& name : names_)
      EXPECT_TRUE(WriteSmallFile(FileSystem::Posix(), dir_ / name, content_).ok());
  }

  // Plans `wanted`, a few at a time.
  ExtentsAhead Ahead(uint64_t max_bytes, uint64_t horizon_bytes = UINT64_MAX) {
    return {{files_, names_, sizes_},
            [this, next = size_t{0}]() mutable -> std::optional<std::vector<ExtentsAhead::Wanted>> {
              if (next == wanted_.size()) return std::nullopt;
              const size_t first = next;
              next = std::min(wanted_.size(), next + 3);
              return std::vector(wanted_.begin() + first, wanted_.begin() + next);
            },
            max_bytes,
            horizon_bytes};
  }

  void Want(uint32_t file, uint64_t begin, uint64_t end) {
    wanted_.push_back({{wanted_.size(), 0}, file, begin, end});
  }

  void ExpectTakes(ExtentsAhead& ahead, size_t i) {
    auto taken = ahead.Take({i, 0});
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    ASSERT_TRUE(taken->has_value());
    const std::string_view bytes(reinterpret_cast<const char*>((*taken)->bytes.data()),
                                 (*taken)->bytes.size());
    EXPECT_TRUE(bytes == content_.substr(wanted_[i].begin, wanted_[i].end - wanted_[i].begin)) << i;
    ahead.Recycle(std::move((*taken)->memory));
  }

  const TempDir dir_;
  const std::vector<std::string> names_{"a", "b", "bad"};
  std::string content_ = std::string(6'000'000, ' ');
  const std::vector<uint64_t> sizes_{content_.size(), content_.size(), content_.size()};
  CountedReads fs_;
  OpenFiles files_{fs_, dir_.path()};
  std::vector<ExtentsAhead::Wanted> wanted_;
};

TEST_F(ExtentsAheadTest, JoinsNeighboursEvenIfAnotherFileIsReadBetweenThem) {
  for (uint64_t i = 0; i < 200; ++i) Want(i % 2, 100 + 1000 * i, 1100 + 1000 * i);
  ExtentsAhead ahead = Ahead(32 << 20);
  for (size_t i = 0; i < wanted_.size(); ++i) ExpectTakes(ahead, i);
  EXPECT_EQ(fs_.reads, 2);
}

TEST_F(ExtentsAheadTest, ReadsInAnyOrderWithAnyAmountOfMemory) {
  std::mt19937_64 rng(9);
  for (const uint64_t max_bytes : {0u, 100'000u, 9'000'000u, 64u << 20}) {
    wanted_.clear();
    for (int i = 0; i < 100; ++i) {
      const uint64_t begin = rng() % content_.size();
      Want(rng() % 2, begin, begin + 1 + rng() % std::min<uint64_t>(content_.size() - begin, 300'000));
    }
    ExtentsAhead ahead = Ahead(max_bytes, max_bytes / 2 + 1);
    std::vector<size_t> order(wanted_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    // Not in the order of the plan, but never far ahead of it: unplanned extents are not available.
    for (size_t i = 0; i + 3 <= order.size(); i += 3) std::shuffle(&order[i], &order[i] + 3, rng);
    for (const size_t i : order) ExpectTakes(ahead, i);
    EXPECT_FALSE((*ahead.Take({0, 0})).has_value());  // it was taken
    EXPECT_FALSE((*ahead.Take({7, 7})).has_value());  // it never was planned
  }
}

TEST_F(ExtentsAheadTest, AFailedReadDoesNotAffectOthers) {
  Want(0, 0, 1000), Want(2, 0, 1000), Want(2, 1000, 2000), Want(1, 0, 1000);
  ExtentsAhead ahead = Ahead(32 << 20);
  ExpectTakes(ahead, 0);
  for (const size_t i : {1, 2}) {
    const Status status = ahead.Take({i, 0}).status();
    EXPECT_EQ(status.kind(), StatusKind::kIoError);
    EXPECT_NE(status.message().find(dir_ / "bad"), std::string::npos) << status.message();
  }
  ExpectTakes(ahead, 3);
}

}  // namespace
}  // namespace cairn
