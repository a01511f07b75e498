#include "tools/manual/command_tree.h"

#include <gtest/gtest.h>

#include "tests/tools/manual/example_app.h"

namespace cairn::manual {
namespace {

using Words = std::vector<std::string>;

const Command& Copy() {
  static const Command program = ExampleProgram();
  return program.commands.at(0);
}

const Option& Flag(const std::string& name) {
  for (const Option& option : Copy().options)
    if (option.names.front() == name) return option;
  ADD_FAILURE() << name;
  static const Option none;
  return none;
}

TEST(CommandTreeTest, NamesBeginWithTheProgram) {
  const Command program = ExampleProgram();
  Words names, pages;
  for (const Command* command : AllCommands(program)) names.push_back(command->name);
  for (const Command* command : AllCommands(program)) pages.push_back(PageName(*command));
  EXPECT_EQ(names, (Words{"tool", "tool copy", "tool list"}));
  EXPECT_EQ(pages, (Words{"tool", "tool-copy", "tool-list"}));
  EXPECT_TRUE(program.needs_command);
  EXPECT_FALSE(Copy().needs_command);
  EXPECT_EQ(LastWord(Copy()), "copy");
}

TEST(CommandTreeTest, LongNamesComeFirst) {
  EXPECT_EQ(Flag("--jobs").names, (Words{"--jobs", "--threads", "-j"}));
  EXPECT_EQ(Flag("--help").names, (Words{"--help", "-h"}));
}

TEST(CommandTreeTest, ValuesHaveATypeName) {
  EXPECT_EQ(Flag("--dry-run").value.kind, ValueKind::kNone);
  EXPECT_EQ(Flag("--mode").value.kind, ValueKind::kChoice);
  EXPECT_EQ(Flag("--mode").value.choices, (Words{"fast", "slow"}));
  EXPECT_EQ(Flag("--to").value.kind, ValueKind::kDirectory);
  EXPECT_EQ(Flag("--log").value.kind, ValueKind::kFile);
  EXPECT_EQ(Flag("--jobs").value.kind, ValueKind::kOther);
  EXPECT_EQ(Copy().positionals.at(0).value.kind, ValueKind::kFile);
  EXPECT_TRUE(Copy().positionals.at(0).repeated);
}

TEST(CommandTreeTest, ConstraintsAreSentences) {
  EXPECT_EQ(ConstraintText(Flag("--jobs")), "Default: 3. From 1 to 8.");
  EXPECT_EQ(ConstraintText(Flag("--to")), "Required.");
  EXPECT_EQ(ConstraintText(Flag("--log")), "Needs --mode.");
  EXPECT_EQ(ConstraintText(Flag("--dry-run")), "Not together with --mode.");
  EXPECT_EQ(ConstraintText(Flag("--mode")), "Not together with --dry-run.");
}

TEST(CommandTreeTest, HiddenOptionsAreLeftOutAndGroupsKept) {
  for (const Option& option : Copy().options) EXPECT_NE(option.names.front(), "--hidden");
  EXPECT_EQ(Flag("--log").group, "Notes");
  EXPECT_EQ(GroupsOf(Copy()), (Words{"", "Notes"}));
  EXPECT_EQ(Copy().choose_one, (Words{"--red", "--blue"}));
  EXPECT_EQ(Flag("--red").group, "");
}

TEST(CommandTreeTest, TheSynopsisNamesRequiredArguments) {
  EXPECT_EQ(SynopsisWords(Copy()), (Words{"[OPTIONS]", "--to DIR", "--red|--blue", "SRC..."}));
  EXPECT_EQ(SynopsisWords(ExampleProgram()), (Words{"[OPTIONS]", "COMMAND"}));
}

TEST(CommandTreeTest, SplitsTheFooterIntoItsParts) {
  const Command& copy = Copy();
  ASSERT_EQ(copy.notes.size(), 3);
  EXPECT_EQ(copy.notes[0].text, "One line, and its second. A table:");
  EXPECT_TRUE(copy.notes[1].verbatim);
  EXPECT_EQ(copy.notes[1].text, "  a  1\n  b  2");
  EXPECT_EQ(copy.examples, (Words{"tool copy a --to b", "tool copy c --to d"}));
  ASSERT_EQ(copy.exit_statuses.size(), 4);
  EXPECT_EQ(copy.exit_statuses[1].meaning, "a, or b failed");
  EXPECT_EQ(copy.exit_statuses[2].meaning, "misuse or trouble");
  EXPECT_EQ(copy.exit_statuses[3].code, "75");
  EXPECT_EQ(copy.exit_statuses[3].meaning, "c");
}

}  // namespace
}  // namespace cairn::manual
