#include "convert/verbs/file_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckpt/base/sha256.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

std::string Sha256Of(const std::string& text) {
  Sha256 sum;
  sum.Update(std::as_bytes(std::span(text)));
  return sum.FinishHex();
}

class FileSumsTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteSmallFile(FileSystem::Posix(), JoinPath(dir_.path(), name), text).ok());
  }
  Result<FileSums> Find(const std::vector<std::string>& files = {}) {
    return FindFileSums(FileSystem::Posix(), dir_.path(), files);
  }
  std::vector<Problem> Problems(const std::vector<std::string>& files = {}) {
    const auto sums = Find(files);
    EXPECT_TRUE(sums.ok()) << sums.status().message();
    return CheckFileSums(FileSystem::Posix(), dir_.path(), *sums).problems;
  }
  TempDir dir_;
};

TEST_F(FileSumsTest, ReadsEveryFileOfSha256Sums) {
  Write("a", "one");
  Write("b", "two");
  Write(std::string(kSha256SumsName), Sha256Of("one") + "  a\n" + Sha256Of("two") + " *b\n");
  EXPECT_THAT(Problems(), SizeIs(0));
  EXPECT_EQ(Find()->bytes, 6);
}

TEST_F(FileSumsTest, ReportsChangedAndMissingFiles) {
  Write("a", "one");
  Write("b", "tvo");
  Write(std::string(kSha256SumsName),
        Sha256Of("one") + "  a\n" + Sha256Of("two") + "  b\n" + Sha256Of("") + "  c\n");
  const auto problems = Problems();
  ASSERT_THAT(problems, SizeIs(2));
  EXPECT_THAT(problems[0].file, HasSubstr("/b"));
  EXPECT_THAT(problems[0].what, HasSubstr("SHA-256"));
  EXPECT_THAT(problems[1].file, HasSubstr("/c"));
}

TEST_F(FileSumsTest, RefusesNamesThatLeadOutside) {
  for (const char* name : {"../a", "/etc/passwd", "x/y", "."}) {
    TempDir dir;
    ASSERT_TRUE(WriteSmallFile(FileSystem::Posix(), JoinPath(dir.path(), std::string(kSha256SumsName)),
                               Sha256Of("one") + "  " + name + "\n")
                    .ok());
    EXPECT_EQ(FindFileSums(FileSystem::Posix(), dir.path(), {}).status().kind(), StatusKind::kCorrupt)
        << name;
  }
}

TEST_F(FileSumsTest, AMalformedLineIsAnError) {
  Write(std::string(kSha256SumsName), "abc  a\n");
  EXPECT_THAT(Find().status().message(), HasSubstr("line 1 is not what sha256sum writes"));
}

TEST_F(FileSumsTest, FilesWithoutSumsAreIgnored) {
  Write("model.safetensors", "nothing");
  EXPECT_TRUE(Find({"model.safetensors"})->empty());
}

}  // namespace
}  // namespace cairn
