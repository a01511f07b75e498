#include "runtime/snapshot/snapshot.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ckpt/step/shard_image.h"
#include "ckpt/step/verify.h"
#include "tests/runtime/snapshot/host_snapshot.h"
#include "tests/support/no_threads.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

const StepIdentity kIdentity{"0123456789abcdef0123456789abcdef", 5};

// A big and some small tensors in two parts of live memory.
class SnapshotTest : public testing::Test {
 protected:
  SnapshotTest() {
    std::mt19937_64 random(1);
    for (auto& part : parts_) {
      part.resize(kRows * 1024 * 4 + 4096);
      for (auto& byte : part) byte = static_cast<std::byte>(random());
    }
    for (uint64_t i = 0; i < 6; ++i) {
      const uint64_t rows = i == 2 ? kRows : i + 1;
      tensors_.push_back(
          {{.name = fmt::format("t{}", i), .shape = {rows, 1024}}, Role::kMaster, Dtype::kF32});
      pieces_.push_back({.tensor = static_cast<uint32_t>(i),
                         .file = 0,
                         .box = Box::Whole({rows, 1024}),
                         .range = {0, rows * 1024},
                         .chunks = {}});
      sources_.push_back({i % 2, i * 100});
    }
  }

  std::unique_ptr<Snapshot> Make(std::unique_ptr<DeviceSnapshot> device = nullptr) {
    auto plan = ShardPlan::Make("shard-00000.h5", {}, tensors_, pieces_);
    EXPECT_TRUE(plan.ok());
    auto snapshot = Snapshot::Make(std::move(plan).value(), sources_, {}, std::move(device));
    EXPECT_TRUE(snapshot.ok());
    return std::move(snapshot).value();
  }
  std::vector<Snapshot::Base> Bases() const { return {{parts_[0].data()}, {parts_[1].data()}}; }

  void ExpectImageHolds(Snapshot& snapshot, const std::vector<std::byte> (&expected)[2]) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto bytes = snapshot.plan().piece(i).stored_bytes;
      EXPECT_EQ(std::memcmp(snapshot.image().data() + snapshot.plan().OffsetOf(i),
                            expected[sources_[i].part].data() + sources_[i].offset, bytes),
                0)
          << i;
    }
  }

  // Writes the image, and checks each digest against the file.
  void ExpectAVerifiedFile(Snapshot& snapshot, const std::string& directory) {
    FileSystem& fs = FileSystem::Posix();
    if (!snapshot.takes_digests()) snapshot.plan().Bind(kIdentity);
    const auto receipt = WriteShardImage(fs, directory, snapshot.plan(), snapshot.image(),
                                         {.write_bytes = 1 << 20,
                                          .take_digests = !snapshot.takes_digests(),
                                          .wait_for = [&](uint64_t end) { return snapshot.WaitFor(end); }});
    ASSERT_TRUE(receipt.ok()) << receipt.status().message();
    VerifyReport report;
    ASSERT_TRUE(
        VerifyShard(fs, {directory, receipt->file, PackCatalog(receipt->catalog), kIdentity}, report).ok());
    EXPECT_TRUE(report.problems.empty()) << ToString(report.problems[0]);
    EXPECT_EQ(report.bytes_checked, receipt->file.bytes);
  }

  static constexpr uint64_t kRows = 5000;  // 20 MB: several chunks
  std::vector<std::byte> parts_[2];
  std::vector<TensorEntry> tensors_;
  std::vector<Piece> pieces_;
  std::vector<Snapshot::Source> sources_;
};

TEST_F(SnapshotTest, BlockingAndBackgroundCopiesGiveTheSameFile) {
  const auto snapshot = Make();
  const TempDir temp;
  for (int round = 0; round < 4; ++round) {
    const TempDir directory;
    if (round % 2 == 0)
      snapshot->CopyNow(kIdentity, Bases());
    else
      snapshot->CopyBehind(kIdentity, Bases());
    ExpectAVerifiedFile(*snapshot, directory.path());
    snapshot->Complete();
    ExpectImageHolds(*snapshot, parts_);
  }
}

// One part "on a GPU", whose place the host twin takes: its bytes and digests join those of the other part.
TEST_F(SnapshotTest, WithoutThreadsABackgroundCopyBlocks) {
  TempDir dir;
  const auto snapshot = Make();
  {
    const NoThreads none;
    snapshot->CopyBehind(kIdentity, Bases());
    snapshot->Complete();
  }
  ExpectImageHolds(*snapshot, parts_);
  ExpectAVerifiedFile(*snapshot, dir.path());
}

TEST_F(SnapshotTest, DeviceAndHostPartsAreJoined) {
  const auto snapshot = Make(NewHostSnapshot());
  for (int round = 0; round < 6; ++round) {
    const TempDir directory;
    const bool first = round % 2 == 0;
    const std::vector<std::byte> before[2] = {parts_[0], parts_[1]};
    snapshot->CopyBehind(kIdentity, {{parts_[0].data(), first}, {parts_[1].data(), !first}});
    std::thread writer([&] { ExpectAVerifiedFile(*snapshot, directory.path()); });
    snapshot->Complete();
    std::ranges::fill(parts_[first ? 1 : 0], static_cast<std::byte>(round));  // the optimizer, on the host
    writer.join();
    ExpectImageHolds(*snapshot, before);
  }
}

// Without a DeviceCopy, which would be slow: the test has none to call.
TEST_F(SnapshotTest, ABlockingCopyIncludesTheDevicesPart) {
  const auto snapshot = Make(NewHostSnapshot());
  const std::vector<std::byte> before[2] = {parts_[0], parts_[1]};
  const TempDir directory;
  snapshot->CopyNow(kIdentity, {{parts_[0].data(), true}, {parts_[1].data(), false}});
  for (auto& part : parts_) std::ranges::fill(part, std::byte{1});
  ExpectAVerifiedFile(*snapshot, directory.path());
  ExpectImageHolds(*snapshot, before);
}

// A failed device ends the write with its error, and the next snapshot works.
TEST_F(SnapshotTest, AFailedDeviceFailsOnlyThatSave) {
  class Failing : public DeviceSnapshot {
   public:
    Status SetArena(std::span<std::byte> arena) override { return host_->SetArena(arena); }
    Status Begin(std::vector<SnapshotPiece> pieces) override { return host_->Begin(std::move(pieces)); }
    Status FenceSources() override { return host_->FenceSources(); }
    void WaitFor(uint64_t arena_end) override { host_->WaitFor(arena_end); }
    Result<SnapshotDigests> Wait() override {
      Result<SnapshotDigests> result = host_->Wait();
      return failures_-- > 0 ? IoError("the device fell off the bus") : std::move(result);
    }

   private:
    std::unique_ptr<DeviceSnapshot> host_ = NewHostSnapshot();
    int failures_ = 1;
  };
  const auto snapshot = Make(std::make_unique<Failing>());
  snapshot->CopyBehind(kIdentity, {{parts_[0].data(), true}, {parts_[1].data(), true}});
  const Status status = snapshot->WaitFor(snapshot->image().size());
  EXPECT_EQ(status.message(), "the device fell off the bus");
  snapshot->CopyBehind(kIdentity, {{parts_[0].data(), true}, {parts_[1].data(), true}});
  ExpectAVerifiedFile(*snapshot, TempDir().path());
}

// Changes by the optimizer after Complete() are not in the snapshot; the file is still being written then.
TEST_F(SnapshotTest, CompleteReleasesTheSourceBeforeTheFileIsWritten) {
  const auto snapshot = Make();
  for (int round = 0; round < 20; ++round) {
    const std::vector<std::byte> before[2] = {parts_[0], parts_[1]};
    const TempDir directory(TempDir::Place::kMemory);
    snapshot->CopyBehind(kIdentity, Bases());
    std::thread writer([&] { ExpectAVerifiedFile(*snapshot, directory.path()); });
    snapshot->Complete();
    for (auto& part : parts_) std::memset(part.data(), round, part.size());
    writer.join();
    ExpectImageHolds(*snapshot, before);
    parts_[0] = before[1];
    parts_[1] = before[0];
  }
}

}  // namespace
}  // namespace cairn
