#include "tools/cli/hints.h"

#include <algorithm>
#include <iterator>

namespace cairn {
namespace {

// The subcommand that was given, at any depth, and its words: "archive run ".
struct Given {
  const CLI::App* verb;
  std::string words;
};

Given GivenVerb(const CLI::App& app) {
  Given given{&app, ""};
  while (!given.verb->get_subcommands().empty()) {
    given.verb = given.verb->get_subcommands().front();
    given.words += given.verb->get_name() + " ";
  }
  return given;
}

std::vector<std::string> FlagsOf(const CLI::App& verb) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : verb.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  return flags;
}

}  // namespace

std::string SeeHelp(const CLI::App& app) { return fmt::format("see cairn {}--help", GivenVerb(app).words); }

std::string UnknownWord(const CLI::App& app) {
  const auto [verb, words] = GivenVerb(app);
  std::vector<std::string> left = app.remaining();
  if (verb != &app) std::ranges::copy(verb->remaining(), std::back_inserter(left));
  if (left.empty()) return "";
  const std::string help = SeeHelp(app);
  std::vector<std::string> below;
  for (const CLI::App* each : verb->get_subcommands({})) below.push_back(each->get_name());
  if (!below.empty() && !left.front().starts_with('-'))
    return fmt::format("unknown verb '{}{}'{}", words, left.front(), Hint(below, left.front(), help, words));
  const auto flag = std::ranges::find_if(left, [](const std::string& word) { return word.starts_with('-'); });
  if (flag == left.end()) return fmt::format("unexpected argument '{}'; {}", left.front(), help);
  const std::string name = flag->substr(0, flag->find('='));
  const bool is_long = name.starts_with("--");
  return fmt::format("unknown flag '{}'{}", name,
                     Hint(is_long ? FlagsOf(*verb) : std::vector<std::string>(), name, help));
}

}  // namespace cairn
