// What the scripts say. That the shells do it, tests/cli/test_manual.py finds out.
#include "tools/manual/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/manual/example_app.h"

namespace cairn::manual {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CompletionTest, BashKnowsCommandsFlagsChoicesAndPaths) {
  const std::string script = BashCompletion(ExampleProgram());
  EXPECT_THAT(script, HasSubstr("'tool copy' | \\\n    'tool list')\n      command="));
  EXPECT_THAT(script,
              HasSubstr("'tool copy --mode')\n      COMPREPLY=($(compgen -W 'fast slow' -- \"$cur\"))"));
  EXPECT_THAT(script, HasSubstr("'tool copy --to')\n      _tool_paths -d; return"));
  EXPECT_THAT(script, HasSubstr("complete -F _tool tool\n"));
  EXPECT_THAT(script, Not(HasSubstr("--hidden")));
}

TEST(CompletionTest, ZshTextKeepsItsQuotesAndBrackets) {
  const std::string script = ZshCompletion(ExampleProgram());
  EXPECT_TRUE(script.starts_with("#compdef tool\n"));
  EXPECT_THAT(script, HasSubstr("'copy:copy '\\''things'\\'' \\[fast\\]\\: it'\\''s quick'\n"));
  EXPECT_THAT(script, HasSubstr("'(--mode --dry-run)--mode=[how]:fast|slow:(fast slow)'"));
  EXPECT_THAT(script, HasSubstr("'(--jobs --threads -j)-j+[threads]:INT: '"));
  EXPECT_THAT(script, HasSubstr("'*:SRC:_files'"));
}

TEST(CompletionTest, FishTextKeepsItsQuotes) {
  const std::string script = FishCompletion(ExampleProgram());
  EXPECT_THAT(script, HasSubstr("-a copy -d 'copy \\'things\\' [fast]: it\\'s quick'\n"));
  EXPECT_THAT(script, HasSubstr("-l mode -x -a 'fast slow' -d 'how'\n"));
  EXPECT_THAT(script, HasSubstr("-l jobs -l threads -s j -x -d 'threads'\n"));
  EXPECT_THAT(script, HasSubstr("-l log -r -F -d 'notes'\n"));
}

}  // namespace
}  // namespace cairn::manual
