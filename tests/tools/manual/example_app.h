// A small program whose flags use every feature of the help.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/manual/command_tree.h"

namespace cairn::manual {

// tool [--version] (copy [OPTIONS] SRC... | list): with a choice, a range, a default, paths, groups, an
// option group.
inline Command ExampleProgram() {
  static std::string text;
  static std::vector<std::string> words;
  static int number = 3;
  static bool flag = false;
  CLI::App app("Copies things.", "tool");
  app.set_version_flag("--version", "tool 1");
  app.require_subcommand(1);
  CLI::App* copy = app.add_subcommand("copy", "copy 'things' [fast]: it's quick");
  copy->add_option("SRC", words, "what to copy")->required();
  CLI::Option* mode = copy->add_option("--mode", text, "how")->option_text("fast|slow");
  copy->add_option("-j,--jobs,--threads", number, "threads")->check(CLI::Range(1, 8))->capture_default_str();
  copy->add_option("--to", text, "where to; a\\b *x* <y>")->type_name("DIR")->required();
  copy->add_option("--log", text, "notes")->type_name("FILE")->group("Notes")->needs(mode);
  copy->add_flag("--dry-run", flag, "do nothing")->excludes(mode);
  copy->add_flag("--hidden", flag, "not for users")->group("");
  CLI::Option_group* kind = copy->add_option_group("kind");
  kind->add_flag("--red", flag, "red things");
  kind->add_flag("--blue", flag, "blue things");
  kind->require_option(1);
  copy->footer(
      "One line,\nand its second.\nA table:\n  a  1\n  b  2\n\n.dots and 'quotes' begin lines.\n\n"
      "Example:\n  tool copy a --to b\n  tool copy c --to d\n\n"
      "Exit status: 0 done, 1 a, or\nb failed, 2 misuse or trouble, 75 c.");
  app.add_subcommand("list", "list things")->footer("Example:\n  tool list");
  return DescribeCommand(app);
}

}  // namespace cairn::manual
