// The kernels and streams of libcairn_cuda.so against their CPU twin and against memcpy with XXH3. Needs a
// GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/runtime/snapshot/host_snapshot.h"
#include "tests/runtime/snapshot/random_pieces.h"
#include "tests/runtime/snapshot/snapshot_twin.h"

namespace cairn {
namespace {

void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

struct FreeDevice {
  void operator()(std::byte* memory) const { (void)cudaFree(memory); }
};
using DeviceBytes = std::unique_ptr<std::byte, FreeDevice>;

DeviceBytes ToDevice(std::span<const std::byte> bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes.size() + 1));
  Check(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  return DeviceBytes(static_cast<std::byte*>(memory));
}

// Whole pages, as an arena's are.
class PageMemory {
 public:
  explicit PageMemory(uint64_t bytes)
      : bytes_(std::max(bytes, kPageBytes)),
        data_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    std::fill_n(span().begin(), bytes_, kGarbage);
  }
  ~PageMemory() { ::munmap(data_, bytes_); }
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  uint64_t bytes_;
  void* data_;
};

class GpuSnapshotTest : public testing::Test {
 protected:
  // Skips the test if there is no GPU; any other failure is one.
  void Open(const CudaSnapshotOptions& options = {}) {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    if (found != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no GPU here: " << (found != cudaSuccess ? cudaGetErrorString(found) : "0 devices");
    auto made = NewCudaSnapshot(options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    snapshot_ = std::move(made).value();
  }
  std::unique_ptr<DeviceSnapshot> snapshot_;
};

// Needs no GPU: the module is found, loads, and answers.
TEST_F(GpuSnapshotTest, TheModuleLoadsAndRefusesASlotSmallerThanAChunk) {
  const auto made = NewCudaSnapshot({.slot_bytes = kPageBytes});
  EXPECT_EQ(made.status().kind(), StatusKind::kInvalidArgument) << made.status().message();
}

TEST_F(GpuSnapshotTest, EqualsTheTwinAndMemcpy) {
  const CudaSnapshotOptions options{.slot_bytes = 8 << 20, .slots = 3};
  Open(options);
  if (snapshot_ == nullptr) return;
  std::mt19937_64 random(1);
  for (int round = 0; round < 30; ++round) {
    const RandomPieces made =
        MakeRandomPieces(1 + random() % 60, round % 5 == 0 ? 80 << 20 : 1 << 20, random);
    const DeviceBytes device = ToDevice(made.data);
    const PageMemory arena(made.arena_bytes), twin_arena(made.arena_bytes), host_arena(made.arena_bytes);
    ASSERT_TRUE(snapshot_->SetArena(arena.span()).ok());
    ASSERT_TRUE(snapshot_->Begin(made.At(device.get())).ok());
    const auto digests = snapshot_->Wait();
    ASSERT_TRUE(digests.ok()) << digests.status().message();
    ASSERT_TRUE(snapshot_->SetArena({}).ok());

    const auto pieces = made.At(made.data.data());
    EXPECT_EQ(*digests, TwinSnapshot(pieces, twin_arena.span(), options.slot_bytes, random())) << round;
    const auto host = NewHostSnapshot();
    ASSERT_TRUE(host->SetArena(host_arena.span()).ok());
    ASSERT_TRUE(host->Begin(pieces).ok());
    EXPECT_EQ(*digests, host->Wait().value()) << round;
    EXPECT_TRUE(std::ranges::equal(arena.span(), host_arena.span())) << round;
    EXPECT_TRUE(std::ranges::equal(arena.span(), twin_arena.span())) << round;
  }
}

// The compute stream overwrites the state right after the fence; the arena must still hold the old one.
TEST_F(GpuSnapshotTest, AFenceKeepsTheSourcesUntilTheyAreRead) {
  Open({.slot_bytes = 8 << 20});
  if (snapshot_ == nullptr) return;
  std::mt19937_64 random(2);
  constexpr uint64_t kBytes = 256 << 20;
  const std::vector<std::byte> period = RandomBytes((1 << 20) + 7, random);
  std::vector<std::byte> state(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i) state[i] = period[i % period.size()];
  const DeviceBytes device = ToDevice(state);
  const PageMemory arena(kBytes);
  ASSERT_TRUE(snapshot_->SetArena(arena.span()).ok());
  for (int round = 0; round < 5; ++round) {
    Check(cudaMemcpyAsync(device.get(), state.data(), kBytes, cudaMemcpyHostToDevice, nullptr));
    ASSERT_TRUE(snapshot_->Begin({{device.get(), kBytes, 0, 1}}).ok());
    ASSERT_TRUE(snapshot_->FenceSources().ok());
    Check(cudaMemsetAsync(device.get(), round, kBytes, nullptr));
    const auto digests = snapshot_->Wait();
    ASSERT_TRUE(digests.ok()) << digests.status().message();
    EXPECT_TRUE(std::ranges::equal(arena.span(), state)) << round;
    EXPECT_EQ((*digests)[0][3], DigestOf(std::span(state).subspan(3 * kChunkBytes, kChunkBytes), 4));
  }
  ASSERT_TRUE(snapshot_->SetArena({}).ok());
}

TEST_F(GpuSnapshotTest, RefusesASecondSnapshotAndOverflowOfTheArena) {
  Open();
  if (snapshot_ == nullptr) return;
  const DeviceBytes device = ToDevice(std::vector<std::byte>(kPageBytes));
  const PageMemory arena(kPageBytes);
  EXPECT_FALSE(snapshot_->Begin({{device.get(), 1, 0, 0}}).ok());  // no arena yet
  EXPECT_FALSE(snapshot_->Wait().ok());
  ASSERT_TRUE(snapshot_->SetArena(arena.span()).ok());
  ASSERT_TRUE(snapshot_->Begin({{device.get(), kPageBytes, 0, 0}}).ok());
  EXPECT_FALSE(snapshot_->Begin({}).ok());
  EXPECT_FALSE(snapshot_->SetArena({}).ok());
  EXPECT_TRUE(snapshot_->Wait().ok());
  EXPECT_TRUE(snapshot_->SetArena({}).ok());
}

}  // namespace
}  // namespace cairn
