#include "ckpt/base/sha256_sums.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

const std::string kDigest(64, 'a');

TEST(Sha256SumsTest, NamesRoundTrip) {
  std::string text = "# a comment\n\n";
  const std::string names[] = {"plain", "two  spaces", "back\\slash", "line\nbreak", "#hash", "*star", "\\n"};
  for (const std::string& name : names) text += Sha256Line(kDigest, name);
  const auto sums = ParseSha256Sums(text);
  ASSERT_TRUE(sums.ok()) << sums.status().message();
  ASSERT_EQ(sums->size(), std::size(names));
  for (size_t i = 0; i < sums->size(); ++i) {
    EXPECT_EQ((*sums)[i].name, names[i]);
    EXPECT_EQ((*sums)[i].digest, kDigest);
  }
}

TEST(Sha256SumsTest, AcceptsBinaryMarksAndUpperCase) {
  const auto sums = ParseSha256Sums(fmt::format("{:A>64} *name", ""));
  ASSERT_TRUE(sums.ok()) << sums.status().message();
  EXPECT_EQ(sums->at(0).name, "name");
  EXPECT_EQ(sums->at(0).digest, kDigest);
}

TEST(Sha256SumsTest, MalformedLinesAreReportedByLineNumber) {
  for (const std::string& line :
       {std::string("abc  name"), kDigest + " name", kDigest + "  ", kDigest + "a  b"})
    EXPECT_EQ(ParseSha256Sums(Sha256Line(kDigest, "good") + line).status().message(),
              "line 2 is not what sha256sum writes")
        << line;
}

}  // namespace
}  // namespace cairn
