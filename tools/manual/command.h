// A command as its flags describe it: the value from which manual pages and shell completion are made.
//
// DescribeCommand (command_tree.h) fills it from CLI11's tree; the renderers (roff.h, markdown.h,
// completion.h) read nothing else, so help, manual and completion cannot disagree.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cairn::manual {

// What a shell can offer for a value.
enum class ValueKind { kNone, kChoice, kFile, kDirectory, kOther };

// The value of a flag or positional. kind is kNone for a flag without a value.
struct Value {
  std::string name;  // as --help writes it: "N", "DIR", "auto|on|off"
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> choices;  // of kChoice: all that may be given
  std::string range;                 // "1 to 256"; empty: any
  std::string default_value;         // empty: none is known
};

struct Option {
  std::vector<std::string> names;  // "-h", "--help"; for a positional its one name, "SRC"
  Value value;
  std::string description;
  std::string group;  // heading of --help; empty: the usual one
  bool required = false;
  bool several_values = false;     // after one flag, or as one positional
  bool repeated = false;           // several values, or the flag several times
  std::vector<std::string> needs;  // names of other options, sorted
  std::vector<std::string> excludes;
};

// A paragraph, or lines that keep their breaks and blanks.
struct TextBlock {
  bool verbatim = false;
  std::string text;
};

struct ExitStatus {
  std::string code;
  std::string meaning;
};

struct Command {
  std::string name;     // with those of its parents: "cairn archive run"
  std::string summary;  // one line
  std::vector<Option> positionals;
  std::vector<Option> options;
  std::vector<std::string> choose_one;  // of these flags exactly one must be given
  std::vector<Command> commands;
  bool needs_command = false;
  std::vector<TextBlock> notes;       // what --help says beneath the options
  std::vector<std::string> examples;  // command lines
  std::vector<ExitStatus> exit_statuses;
};

// "cairn-archive-run": the name of its page.
std::string PageName(const Command& command);

// "run" of "cairn archive run".
std::string LastWord(const Command& command);

// The subcommand with this last word; null if the command has no such one.
const Command* FindSubcommand(const Command& command, std::string_view word);

// The words after the command's name: "[OPTIONS] --store DIR SRC...".
std::vector<std::string> SynopsisWords(const Command& command);

// The value as help writes it, with "..." if several may be given; empty for a flag without one.
std::string ValueText(const Option& option);

// The sentences after the description: "Default: 3. From 1 to 8. Not together with --x."; may be empty.
std::string ConstraintText(const Option& option);

// The description, and these sentences.
std::string BodyText(const Option& option);

// The groups in the order of their first option.
std::vector<std::string> GroupsOf(const Command& command);

// The command and all below it, parents first.
std::vector<const Command*> AllCommands(const Command& root);

}  // namespace cairn::manual
