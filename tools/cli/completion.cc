// The words before the cursor lead from command to command; a flag that takes a value takes the next word.
// Then either that value is completed, or a flag, or a subcommand or positional.

#include "tools/cli/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace cairn {
namespace {

constexpr std::array<std::string_view, 2> kDirectories = {"DIR", "STORE"};
constexpr std::array<std::string_view, 13> kFiles = {
    "A", "B", "CKPT", "DST", "FILE", "INPUT", "LOG", "PATH", "POLICY", "PREFIX", "ROWS", "SRC", "TABLE"};

// bash cuts "--flag=value" into three words, here and at the cursor.
std::vector<std::string> JoinAssignments(const std::vector<std::string>& words) {
  std::vector<std::string> joined;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != "=" || joined.empty() || !joined.back().starts_with("--")) {
      joined.push_back(words[i]);
      continue;
    }
    joined.back() += "=";
    if (i + 1 < words.size()) joined.back() += words[++i];
  }
  return joined;
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

class Completer {
 public:
  explicit Completer(const CLI::App& root) : command_(&root) {}

  void Pass(const std::string& word) {
    if (value_of_ != nullptr) {
      value_of_ = nullptr;
    } else if (word.starts_with('-')) {
      const size_t equals = word.find('=');
      const CLI::Option* option = command_->get_option_no_throw(word.substr(0, equals));
      if (option == nullptr) return;
      given_.insert(option);
      if (equals == word.npos && TakesValue(*option)) value_of_ = option;
    } else {
      for (const CLI::App* below : Commands(word))
        if (below->get_name() == word) command_ = below, given_.clear();
    }
  }

  std::string Complete(const std::string& word) {
    const size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    if (value_of_ != nullptr) {
      AddValue(*value_of_, word);
    } else if (equals != word.npos) {
      if (const CLI::Option* option = command_->get_option_no_throw(word.substr(0, equals)))
        AddValue(*option, word.substr(equals + 1));
    } else {
      for (const CLI::App* below : Commands(word)) Add(below->get_name(), below->get_description(), word);
      AddOptions(*command_, word);
    }
    return fmt::format("{}\n{}", paths_, candidates_);
  }

 private:
  // The subcommands whose names begin with `word`, without hidden ones and option groups.
  std::vector<const CLI::App*> Commands(const std::string& word) const {
    return command_->get_subcommands([&](const CLI::App* below) {
      return !below->get_name().empty() && !below->get_group().empty() && below->get_name().starts_with(word);
    });
  }

  void Add(const std::string& word, const std::string& description, const std::string& begin) {
    if (word.starts_with(begin)) candidates_ += fmt::format("{}\t{}\n", word, description);
  }

  void AddValue(const CLI::Option& option, const std::string& begin) {
    // CLI11 appends the descriptions of the checks: "INT:INT in [1 - 8]".
    const std::string text =
        option.get_option_text().empty() ? option.get_type_name() : option.get_option_text();
    const std::string word = text.substr(0, text.find(':'));
    if (word.find('|') != word.npos && std::ranges::none_of(word, [](char c) { return std::isupper(c); }))
      for (const std::string& choice : CLI::detail::split(word, '|')) Add(choice, "", begin);
    const std::string kind = option.get_positional() ? option.get_name(true) : word.substr(0, word.find('.'));
    if (std::ranges::count(kFiles, kind) > 0) paths_ = "files";
    if (std::ranges::count(kDirectories, kind) > 0 && paths_ == "none") paths_ = "directories";
  }

  // Flags that may still be given, if the word begins one, else the positionals; those of the option groups
  // too.
  void AddOptions(const CLI::App& app, const std::string& word) {
    for (const CLI::Option* option : app.get_options()) {
      const bool is_of_group = app.get_name().empty() && option == app.get_help_ptr();  // its parent has one
      if (option->get_group().empty() || is_of_group) continue;
      if (option->get_positional() != word.starts_with('-'))
        option->get_positional() ? AddValue(*option, word) : AddFlag(*option, word);
    }
    for (const CLI::App* group :
         app.get_subcommands([](const CLI::App* below) { return below->get_name().empty(); }))
      AddOptions(*group, word);
  }

  void AddFlag(const CLI::Option& option, const std::string& word) {
    if (given_.contains(&option) && option.get_expected_max() <= 1) return;
    for (const CLI::Option* other : option.get_excludes())
      if (given_.contains(other)) return;
    for (const std::string& name : option.get_lnames())
      Add(fmt::format("--{}{}", name, TakesValue(option) ? "=" : ""), option.get_description(), word);
    for (const std::string& name : option.get_snames()) Add("-" + name, option.get_description(), word);
  }

  const CLI::App* command_;
  const CLI::Option* value_of_ = nullptr;  // whose value the next word is
  std::set<const CLI::Option*> given_;     // flags of command_ so far
  std::string paths_ = "none", candidates_;
};

}  // namespace

std::string Complete(const CLI::App& root, std::vector<std::string> words) {
  words = JoinAssignments(words);
  if (words.size() < 2) return "none\n";
  Completer completer(root);
  for (size_t i = 1; i + 1 < words.size(); ++i) completer.Pass(words[i]);
  return completer.Complete(words.back());
}

}  // namespace cairn
