// The candidates for the last word. tests/cli/test_manual.py runs the scripts in the shells.
#include "tools/cli/completion.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace cairn {
namespace {

// For words of a program whose flags use every feature of the help.
std::string Offered(std::vector<std::string> words) {
  std::string text;
  std::vector<std::string> texts;
  int number = 3;
  bool flag = false;
  CLI::App app("Copies things.", "tool");
  CLI::App* copy = app.add_subcommand("copy", "copy 'things' [fast]");
  copy->add_option("SRC", texts, "the files to copy")->required();
  CLI::Option* mode = copy->add_option("--mode", text, "how")->option_text("fast|slow");
  copy->add_option("-j,--jobs", number, "threads")->check(CLI::Range(1, 8));
  copy->add_option("--to", text, "to")->type_name("DIR")->check(CLI::NonexistentPath);
  copy->add_option("--log", text, "notes")->type_name("FILE")->group("Notes");
  copy->add_flag("--dry-run", flag, "do nothing")->excludes(mode);
  copy->add_flag("--hidden", flag, "not for users")->group("");
  copy->add_option_group("kind")->add_flag("--red", flag, "red things");
  app.add_subcommand("list", "list things");
  app.add_subcommand("__secret", "")->group("");
  words.insert(words.begin(), "tool");
  return Complete(app, words);
}

TEST(CompletionTest, EachPlaceOffersTheWordsThatMayStandThere) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{""}, "none\ncopy\tcopy 'things' [fast]\nlist\tlist things\n"},
      {{"li"}, "none\nlist\tlist things\n"},
      {{"copy", "--m"}, "none\n--mode=\thow\n"},
      {{"copy", "-j"}, "none\n-j\tthreads\n"},
      {{"copy", "--r"}, "none\n--red\tred things\n"},
      {{"copy", "--hid"}, "none\n"},
      {{"copy", "--mode", ""}, "none\nfast\t\nslow\t\n"},
      {{"copy", "--mode=s"}, "none\nslow\t\n"},
      {{"copy", "--mode", "=", "s"}, "none\nslow\t\n"},  // as bash divides it
      {{"copy", "--mode", "="}, "none\nfast\t\nslow\t\n"},
      {{"copy", "--jobs", "list", "--m"}, "none\n--mode=\thow\n"},  // a value, not a command
      {{"copy", "--jobs", ""}, "none\n"},
      {{"copy", "--mode=fast", "--m"}, "none\n"},     // it was given
      {{"copy", "--mode", "fast", "--d"}, "none\n"},  // it is excluded
      {{"copy", "--d"}, "none\n--dry-run\tdo nothing\n"},
      {{"copy", ""}, "files\n"},
      {{"copy", "--to", "x"}, "directories\n"},
      {{"copy", "--log="}, "files\n"},
      {{"list", ""}, "none\n"}};
  for (const auto& [words, offered] : cases) {
    std::string line;
    for (const std::string& word : words) line += " " + word;
    EXPECT_EQ(Offered(words), offered) << line;
  }
}

}  // namespace
}  // namespace cairn
