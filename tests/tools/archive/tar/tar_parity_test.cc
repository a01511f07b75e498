#include "tools/archive/tar/tar_parity.h"

#include <gtest/gtest.h>

#include "tests/support/file_bytes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

// A disk that cannot read one part of one file: read number `at` of `path` fails.
class BadSectorFileSystem final : public WrappedFileSystem {
 public:
  BadSectorFileSystem(std::string path, int at)
      : WrappedFileSystem(FileSystem::Posix()), path_(std::move(path)), left_(at) {}
  bool met() const { return left_ < 0; }

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind == FsCall::Kind::kRead && call.path == path_ && left_-- == 0)
      return IoError("{}: bad sector", path_);
    return run();
  }

 private:
  const std::string path_;
  int left_;
};

class TarParityTest : public testing::Test {
 protected:
  TarParityTest() {
    std::string bytes(5 * kParityBlockBytes + 4096, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
    EXPECT_TRUE(WriteSmallFile(FileSystem::Posix(), path_, bytes).ok());
  }
  Result<ArchivedParity> Write(FileSystem& fs, double fraction = 0.1) {
    return WriteTarParity(fs, path_, fraction, PlaceOfTar(path_));
  }
  std::vector<std::string> Files() { return FileSystem::Posix().List(dir_.path()).value(); }

  TempDir dir_{TempDir::Place::kMemory};
  const std::string path_ = dir_ / "x.tar";
};

TEST_F(TarParityTest, WritesNoParityForAnUnreadableTar) {
  BadSectorFileSystem fs(path_, 2);
  const auto parity = Write(fs);
  ASSERT_TRUE(fs.met());
  EXPECT_EQ(parity.status().kind(), StatusKind::kIoError);
  EXPECT_NE(parity.status().message().find("bad sector"), std::string::npos) << parity.status().message();
  EXPECT_EQ(Files(), std::vector<std::string>{"x.tar"});
}

TEST(StripeShapeTest, HasAtLeastTheRequestedParity) {
  for (int percent = 1; percent <= 50; ++percent) {
    const auto shape = ShapeFor(percent / 100.0);
    ASSERT_TRUE(shape.ok()) << percent << ": " << shape.status().message();
    EXPECT_EQ(shape->data + shape->parity, kMaxCodeBlocks);
    EXPECT_GE(100 * shape->parity, percent * shape->data) << percent;
    // One block less would be too few; 28 % is a little more as a double.
    EXPECT_TRUE(shape->parity == 1 || 100 * (shape->parity - 1) <= percent * (shape->data + 1)) << percent;
  }
  EXPECT_EQ(ShapeFor(0.501).status().kind(), StatusKind::kInvalidArgument);
}

TEST_F(TarParityTest, PredictsItsSize) {
  for (const double fraction : {0.01, 0.1, 0.5}) {
    const auto parity = Write(FileSystem::Posix(), fraction);
    ASSERT_TRUE(parity.ok()) << parity.status().message();
    EXPECT_EQ(parity->bytes, BytesOf(path_ + ".parity").size());
    EXPECT_EQ(parity->bytes, *ParityFileBytes(BytesOf(path_).size(), fraction));
  }
}

TEST_F(TarParityTest, RepairsAnUnreadableBlock) {
  ASSERT_TRUE(Write(FileSystem::Posix()).ok());
  BadSectorFileSystem fs(path_, 2);
  const auto repaired = RepairTar(fs, PlaceOfTar(path_), PlaceOfTar(dir_ / "y.tar"));
  ASSERT_TRUE(repaired.ok()) << repaired.status().message();
  ASSERT_TRUE(fs.met());
  EXPECT_EQ(*repaired, 1u);
  EXPECT_EQ(BytesOf(path_), BytesOf(dir_ / "y.tar"));
}

}  // namespace
}  // namespace cairn
