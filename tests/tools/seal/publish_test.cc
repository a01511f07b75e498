// A publication that is interrupted at any operation leaves a whole directory under the name, or next to it,
// where the next one finds it.

#include "tools/seal/publish.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/faulty_file_system.h"
#include "tests/support/file_bytes.h"
#include "tests/support/no_exchange.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

void PutText(const std::string& path, const std::string& text) {
  ASSERT_TRUE(WriteSmallFile(FileSystem::Posix(), path, text).ok());
}

// DIR/partial/TAG has new files, DIR/TAG old ones.
class PublishTest : public testing::Test {
 protected:
  PublishTest() { Make(); }

  void Make() {
    for (const char* name : {"partial", "TAG"}) stdfs::remove_all(dir_ / name);
    stdfs::create_directories(from_);
    stdfs::create_directories(to_);
    PutText(from_ + "/file", "new");
    PutText(to_ + "/file", "old");
  }
  static std::string At(const std::string& directory) {
    return stdfs::exists(directory + "/file") ? BytesOf(directory + "/file") : "";
  }

  // Interrupts the publication at each operation. `beside`: the name may be free, with both directories
  // next to it.
  void CutShort(FileSystem& fs, bool beside) {
    for (int64_t budget = 0;; ++budget) {
      SCOPED_TRACE(budget);
      Make();
      FaultyFileSystem faulty(fs);
      faulty.SetBudget(budget);
      const bool done = PublishDirectory(faulty, from_, to_).ok();
      const std::string found = At(to_);
      EXPECT_TRUE(found == "old" || found == "new" || (beside && found.empty()));
      const std::string beside_it = At(AsidePath(from_)) + At(from_);
      EXPECT_EQ(beside_it, found.empty() ? "oldnew" : found == "old" ? "new" : "old");
      if (done) {
        EXPECT_EQ(found, "new");
        EXPECT_EQ(At(from_), "old");
        return;
      }
      if (found == "new") continue;
      EXPECT_TRUE(CheckPublish(fs, from_, to_).ok());
      EXPECT_EQ(PublishDirectory(fs, from_, to_).value(), true) << "the same command again";
      EXPECT_EQ(At(to_), "new");
      EXPECT_EQ(At(from_), "old");
    }
  }

  TempDir dir_{TempDir::Place::kMemory};
  const std::string from_ = dir_ / "partial/TAG", to_ = dir_ / "TAG";
};

TEST_F(PublishTest, AnExistingNameIsCompleteAtAnyTime) { CutShort(FileSystem::Posix(), false); }

TEST_F(PublishTest, WithoutExchangeBothNamesAreKept) {
  NoExchange fs(FileSystem::Posix());
  CutShort(fs, true);
}

TEST_F(PublishTest, PublishesUnderAFreeName) {
  stdfs::remove_all(to_);
  ASSERT_TRUE(CheckPublish(FileSystem::Posix(), from_, to_).ok());
  EXPECT_EQ(PublishDirectory(FileSystem::Posix(), from_, to_).value(), false);
  EXPECT_EQ(At(to_), "new");
  EXPECT_FALSE(stdfs::exists(from_));
}

TEST_F(PublishTest, RefusesAnythingButAStepOfAnotherSystem) {
  FileSystem& fs = FileSystem::Posix();
  EXPECT_EQ(CheckPublish(fs, from_, dir_ / "none/TAG").kind(), StatusKind::kNotFound);
  EXPECT_EQ(CheckPublish(fs, from_, to_ + "/file").kind(), StatusKind::kNotSupported);
  stdfs::create_directories(dir_ / "run/step-00000001");
  PutText(dir_ / "run/step-00000001/manifest.json", "{}");
  EXPECT_FALSE(CheckPublish(fs, from_, dir_ / "run/step-00000001").ok());
  EXPECT_FALSE(CheckPublish(fs, from_, dir_ / "run/step-00000001/inside").ok());
  EXPECT_FALSE(CheckPublish(fs, from_, dir_ / "run").ok());
  stdfs::create_directories(AsidePath(from_));
  EXPECT_EQ(CheckPublish(fs, from_, to_).kind(), StatusKind::kAlreadyExists);
}

}  // namespace
}  // namespace cairn
