// cuda_snapshot.cc's streams, events and slots over a CUDA runtime made of threads (fake_cuda.h).
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "runtime/snapshot/snapshot_window.h"
#include "tests/runtime/snapshot/fake/fake_cuda.h"
#include "tests/runtime/snapshot/host_snapshot.h"
#include "tests/runtime/snapshot/random_pieces.h"
#include "tests/runtime/snapshot/snapshot_twin.h"

extern "C" void CairnNewCudaSnapshot(const cairn::CudaSnapshotOptions&, cairn::Status*,
                                     cairn::DeviceSnapshot**);

namespace cairn {
namespace {

Result<std::unique_ptr<DeviceSnapshot>> New(const CudaSnapshotOptions& options) {
  Status status;
  DeviceSnapshot* snapshot = nullptr;
  CairnNewCudaSnapshot(options, &status, &snapshot);
  if (!status.ok()) return status;
  return std::unique_ptr<DeviceSnapshot>(snapshot);
}

// State, and HostSnapshot's result for it.
struct Expected {
  explicit Expected(RandomPieces from) : made(std::move(from)), arena(made.arena_bytes, kGarbage) {
    const auto host = NewHostSnapshot();
    EXPECT_TRUE(host->SetArena(arena).ok());
    EXPECT_TRUE(host->Begin(made.At(made.data.data())).ok());
    digests = host->Wait().value();
  }
  RandomPieces made;
  std::vector<std::byte> arena;
  SnapshotDigests digests;
};

// As a saver does while the arena fills: it reads the bytes that WaitFor reports.
bool FillsInOrder(DeviceSnapshot& snapshot, std::span<const std::byte> arena,
                  std::span<const std::byte> expected) {
  constexpr uint64_t kRead = 256 << 10;
  bool same = true;
  for (uint64_t at = 0; at < arena.size(); at += kRead) {
    const uint64_t count = std::min<uint64_t>(kRead, arena.size() - at);
    snapshot.WaitFor(at + count);
    same = same && std::ranges::equal(arena.subspan(at, count), expected.subspan(at, count));
  }
  return same;
}

// The trainer around a snapshot: the compute stream writes the state just before Begin and overwrites it just
// after the fence, wherever the streams are by then.
Result<SnapshotDigests> Train(DeviceSnapshot& snapshot, const Expected& expected,
                              std::span<const std::byte> arena) {
  const RandomPieces& made = expected.made;
  const std::vector<std::byte> spoil(made.data.size(), kGarbage);
  std::vector<std::byte> device(made.data.size());
  const auto fill = [&](const std::vector<std::byte>& from) {
    EXPECT_EQ(cudaMemcpyAsync(device.data(), from.data(), from.size(), cudaMemcpyHostToDevice, nullptr),
              cudaSuccess);
  };
  fill(made.data);
  CAIRN_RETURN_IF_ERROR(snapshot.Begin(made.At(device.data())));
  auto in_order =
      std::async(std::launch::async, FillsInOrder, std::ref(snapshot), arena, std::span(expected.arena));
  EXPECT_TRUE(snapshot.FenceSources().ok());
  fill(spoil);
  EXPECT_TRUE(in_order.get());
  auto digests = snapshot.Wait();
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  return digests;
}

TEST(CudaSnapshotTest, CopiesTheStateBeforeTheFenceAtAnyPaceOfStreams) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 6; ++round) {
    const Expected expected(MakeRandomPieces(20, 14 << 20, random));
    auto snapshot = New({.slot_bytes = kChunkBytes + random() % 3 * kPageBytes, .slots = 2 + round % 3});
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
    std::vector<std::byte> arena(expected.arena.size(), kGarbage);
    ASSERT_TRUE((*snapshot)->SetArena(arena).ok());
    for (int save = 0; save < 2; ++save) {
      const auto digests = Train(**snapshot, expected, arena);
      ASSERT_TRUE(digests.ok()) << digests.status().message();
      EXPECT_EQ(*digests, expected.digests) << "round " << round;
      EXPECT_TRUE(arena == expected.arena) << "round " << round;
      std::ranges::fill(arena, kGarbage);
    }
  }
}

TEST(CudaSnapshotTest, EveryFailureOfACudaCallIsReported) {
  std::mt19937_64 random(2);
  RandomPieces made;
  made.data = RandomBytes(2 * kChunkBytes + 100, random);  // three windows for two slots
  made.pieces = {{nullptr, made.data.size(), 0, 5}};
  made.arena_bytes = 2 * kChunkBytes + kPageBytes;
  const std::vector<std::byte> untouched(made.arena_bytes, kGarbage), device(made.data);
  std::vector<std::byte> arena(made.arena_bytes);
  std::unique_ptr<DeviceSnapshot> last;
  const auto all = [&]() -> Result<SnapshotDigests> {
    last.reset();
    CAIRN_ASSIGN_OR_RETURN(last, New({.slot_bytes = kChunkBytes}));
    CAIRN_RETURN_IF_ERROR(last->SetArena(arena));
    CAIRN_RETURN_IF_ERROR(last->Begin(made.At(device.data())));
    const Status fenced = last->FenceSources();
    last->WaitFor(~uint64_t{0});
    auto digests = last->Wait();
    return fenced.ok() ? std::move(digests) : fenced;
  };
  fake_cuda::FailCall(0);
  ASSERT_TRUE(all().ok());
  const int64_t calls = fake_cuda::Calls();
  ASSERT_GT(calls, 60);
  for (int64_t call = 1; call <= calls; ++call) {
    fake_cuda::FailCall(call);
    const auto digests = all();
    fake_cuda::FailCall(0);
    ASSERT_FALSE(digests.ok()) << "call " << call;
    EXPECT_TRUE(digests.status().message().find("unknown error") != std::string::npos)
        << digests.status().message();
    // The next snapshot works, and the failed one does not touch its arena again.
    std::ranges::fill(arena, kGarbage);
    std::vector<std::byte> next_arena(kPageBytes);
    if (last == nullptr || !last->SetArena(next_arena).ok()) continue;
    const auto bytes = std::span(device).first(1000);
    ASSERT_TRUE(last->Begin({{bytes.data(), bytes.size(), 0, 9}}).ok());
    EXPECT_EQ(last->Wait().value(), (SnapshotDigests{{DigestOf(bytes, 9)}}))
        << "after the failure of call " << call;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), next_arena.begin()));
    EXPECT_TRUE(arena == untouched) << "call " << call;
  }
}

TEST(CudaSnapshotTest, RefusesInvalidRequests) {
  fake_cuda::FailCall(0);
  EXPECT_EQ(New({.slot_bytes = kChunkBytes - kPageBytes}).status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(New({.slots = 1}).status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(New({.device = 1}).status().kind(), StatusKind::kNotSupported);
  auto snapshot = New({.slot_bytes = kChunkBytes});
  ASSERT_TRUE(snapshot.ok());
  std::vector<std::byte> state(kPageBytes), arena(kPageBytes);
  EXPECT_EQ((*snapshot)->Wait().status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ((*snapshot)->Begin({{state.data(), 1, 0, 0}}).kind(), StatusKind::kInvalidArgument);  // no arena
  EXPECT_TRUE((*snapshot)->FenceSources().ok());
  ASSERT_TRUE((*snapshot)->SetArena(arena).ok());
  ASSERT_TRUE((*snapshot)->Begin({{state.data(), 1, 0, 0}}).ok());
  EXPECT_EQ((*snapshot)->Begin({}).kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ((*snapshot)->SetArena({}).kind(), StatusKind::kInvalidArgument);
  EXPECT_TRUE((*snapshot)->Wait().ok());
  ASSERT_TRUE((*snapshot)->Begin({}).ok());  // destroyed under way
}

}  // namespace
}  // namespace cairn
