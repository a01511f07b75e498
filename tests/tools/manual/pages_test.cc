#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/manual/example_app.h"
#include "tools/manual/markdown.h"
#include "tools/manual/roff.h"

namespace cairn::manual {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(RoffTest, EscapesTextThatLooksLikeRequests) {
  EXPECT_EQ(RoffText(".TH"), "\\&.TH");
  EXPECT_EQ(RoffText("'s a-b"), "\\(aqs a\\-b");
  EXPECT_EQ(RoffText("a\\b"), "a\\(rsb");
  EXPECT_EQ(RoffText("\"~^`"), "\\(dq\\(ti\\(ha\\(ga");
  EXPECT_EQ(RoffText("\xc3\xa9 \xe2\x80\x93"), "\\[u00E9] \\[u2013]");
}

TEST(RoffTest, ThePageHasItsSections) {
  const std::string page = RoffPage(ExampleProgram().commands[0], "tool 1");
  EXPECT_THAT(page, HasSubstr(".TH TOOL\\-COPY 1 \"\" \"tool 1\""));
  EXPECT_THAT(page, HasSubstr(".SH NAME\ntool\\-copy \\- copy"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-jobs\\fR, \\fB\\-\\-threads\\fR, \\fB\\-j\\fR \\fIINT\\fR\n"
                              "threads. Default: 3. From 1 to 8.\n"));
  EXPECT_THAT(page, HasSubstr(".SS Notes\n"));
  EXPECT_THAT(page, HasSubstr("\n\\&.dots and \\(aqquotes\\(aq begin lines.\n"));
  EXPECT_THAT(page, HasSubstr(".nf\n  a  1\n  b  2\n.fi\n"));
  EXPECT_THAT(page, HasSubstr("Give exactly one of \\-\\-red, \\-\\-blue.\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fB1\\fR\na, or b failed\n"));
  EXPECT_THAT(page, HasSubstr(".SH SEE ALSO\n\\fBtool\\fR(1)\n"));
  EXPECT_THAT(page, Not(HasSubstr("hidden")));
}

TEST(RoffTest, AProgramListsItsCommandsAndHasNoParent) {
  const std::string page = RoffPage(ExampleProgram(), "tool 1");
  EXPECT_THAT(page, HasSubstr(".SH COMMANDS\n.TP\n\\fBtool\\-copy\\fR(1)\n"));
  EXPECT_THAT(page, Not(HasSubstr("SEE ALSO")));
}

TEST(MarkdownTest, MarkdownIsEscapedOutsideOfCode) {
  EXPECT_EQ(MarkdownText("*a* _b_ [c] ` \\"), "\\*a\\* \\_b\\_ \\[c\\] \\` \\\\");
  EXPECT_EQ(MarkdownText("say `*d* [e]`*"), "say `*d* [e]`\\*");
  EXPECT_EQ(MarkdownText("<y> & z"), "&lt;y&gt; &amp; z");
}

TEST(MarkdownTest, ThePageHasItsSections) {
  const std::string page = MarkdownPage(ExampleProgram().commands[0]);
  EXPECT_THAT(page, HasSubstr("# tool copy\n\ncopy 'things' \\[fast\\]: it's quick\n\n"));
  EXPECT_THAT(page, HasSubstr("```text\ntool copy [OPTIONS] --to DIR --red|--blue SRC...\n```\n"));
  EXPECT_THAT(page, HasSubstr("- `--jobs`, `--threads`, `-j INT`: threads. Default: 3. From 1 to 8.\n"));
  EXPECT_THAT(page, HasSubstr("## Notes\n\n- `--log FILE`: notes. Needs --mode.\n"));
  EXPECT_THAT(page, HasSubstr("```text\n  a  1\n  b  2\n```\n"));
  EXPECT_THAT(page, HasSubstr("- `1`: a, or b failed\n"));
  EXPECT_TRUE(page.ends_with("trouble\n- `75`: c\n"));
}

TEST(MarkdownTest, TheProgramIsTheIndex) {
  const Command program = ExampleProgram();
  EXPECT_EQ(MarkdownFile(program), "index.md");
  EXPECT_EQ(MarkdownFile(program.commands[0]), "copy.md");
  EXPECT_THAT(MarkdownPage(program), HasSubstr("- [`tool copy`](copy.md): "));
}

}  // namespace
}  // namespace cairn::manual
