// The candidates for the last word. tests/cli/test_manual.py runs the scripts in the shells.
#include "tools/manual/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/manual/example_app.h"

namespace cairn::manual {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Offered(std::vector<std::string> words) {
  std::vector<std::string> offered;
  for (const Candidate& candidate : Complete(ExampleProgram(), std::move(words)).candidates)
    offered.push_back(candidate.word);
  return offered;
}

ValueKind PathsFor(std::vector<std::string> words) {
  return Complete(ExampleProgram(), std::move(words)).paths;
}

TEST(CompletionTest, SubcommandsHaveTheirSummaries) {
  const Completion completion = Complete(ExampleProgram(), {"tool", ""});
  ASSERT_EQ(completion.candidates.size(), 2U);
  EXPECT_EQ(completion.candidates[0].word, "copy");
  EXPECT_EQ(completion.candidates[0].description, "copy 'things' [fast]: it's quick");
  EXPECT_EQ(CompletionText(Complete(ExampleProgram(), {"tool", "li"})), "none\nlist\tlist things\n");
}

TEST(CompletionTest, FlagsWithAValueEndWithAnEqualsSign) {
  EXPECT_THAT(Offered({"tool", "copy", "--m"}), ElementsAre("--mode="));
  EXPECT_THAT(Offered({"tool", "copy", "-j"}), ElementsAre("-j"));
  EXPECT_THAT(Offered({"tool", "copy", "--r"}), ElementsAre("--red"));
  EXPECT_THAT(Offered({"tool", "copy", "--hid"}), IsEmpty());
}

TEST(CompletionTest, ChoicesAreOfferedInBothSpellings) {
  EXPECT_THAT(Offered({"tool", "copy", "--mode", ""}), ElementsAre("fast", "slow"));
  EXPECT_THAT(Offered({"tool", "copy", "--mode=s"}), ElementsAre("slow"));
  EXPECT_THAT(Offered({"tool", "copy", "--mode", "=", "s"}), ElementsAre("slow"));
  EXPECT_THAT(Offered({"tool", "copy", "--mode", "="}), ElementsAre("fast", "slow"));
}

TEST(CompletionTest, AValueIsNotACommand) {
  EXPECT_THAT(Offered({"tool", "copy", "--jobs", "list", "--m"}), ElementsAre("--mode="));
  EXPECT_THAT(Offered({"tool", "copy", "--jobs", ""}), IsEmpty());
}

TEST(CompletionTest, UsedAndExcludedFlagsAreNotOffered) {
  EXPECT_THAT(Offered({"tool", "copy", "--mode=fast", "--m"}), IsEmpty());
  EXPECT_THAT(Offered({"tool", "copy", "--mode", "fast", "--d"}), IsEmpty());
  EXPECT_THAT(Offered({"tool", "copy", "--d"}), ElementsAre("--dry-run"));
}

TEST(CompletionTest, PathsAreLeftToTheShell) {
  EXPECT_EQ(PathsFor({"tool", "copy", ""}), ValueKind::kFile);
  EXPECT_EQ(PathsFor({"tool", "copy", "--to", ""}), ValueKind::kDirectory);
  EXPECT_EQ(PathsFor({"tool", "copy", "--log="}), ValueKind::kFile);
  EXPECT_EQ(PathsFor({"tool", "list", ""}), ValueKind::kNone);
  EXPECT_EQ(CompletionText(Complete(ExampleProgram(), {"tool", "copy", "--to", "x"})), "directories\n");
}

}  // namespace
}  // namespace cairn::manual
