// The words before the cursor lead from command to command; a flag that takes a value takes the next word.
// Then either that value is completed, or a flag, or a subcommand or positional.
#include "tools/manual/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace cairn::manual {
namespace {

constexpr std::string_view kBashScript = R"(# bash completion of {0}, made by `{0} completion bash`.

_{0}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} paths word rest
  COMPREPLY=()
  {{
    read -r paths
    while IFS=$'\t' read -r word rest; do COMPREPLY+=("${{word%=}}"); done
  }} < <("${{COMP_WORDS[0]}}" __complete -- "${{COMP_WORDS[@]:0:COMP_CWORD + 1}}" 2> /dev/null)
  case $paths in
    files) paths=-f ;;
    directories) paths=-d ;;
    *) return ;;
  esac
  [[ $cur == = ]] && cur= # bash cuts --flag=value into three words
  compopt -o filenames 2> /dev/null
  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen "$paths" -- "$cur")
}}
complete -F _{0} {0}
)";

constexpr std::string_view kZshScript = R"(#compdef {0}
# zsh completion of {0}, made by `{0} completion zsh`.

_{0}() {{
  local -a lines plain valued
  local line
  lines=("${{(@f)$("${{words[1]}}" __complete -- "${{(@Q)words[1,CURRENT - 1]}}" "$PREFIX" 2> /dev/null)}}")
  [[ $PREFIX == --*=* ]] && compset -P '*='
  for line in "${{(@)lines[2,-1]}}"; do
    line=${{${{line//:/\\:}}/$'\t'/:}}
    if [[ $line == --*=:* ]]; then valued+=("$line"); else plain+=("$line"); fi
  done
  (( $#plain )) && _describe -t words word plain
  (( $#valued )) && _describe -t options option valued -S ''
  case $lines[1] in
    files) _files ;;
    directories) _files -/ ;;
  esac
}}

# Autoloaded, the file is the function's body; sourced, it only declares it.
if [[ $funcstack[1] == _{0} ]]; then
  _{0} "$@"
else
  compdef _{0} {0}
fi
)";

constexpr std::string_view kFishScript = R"(# fish completion of {0}, made by `{0} completion fish`.

function __{0}_complete
    set -l token (commandline -ct)
    set -l words (commandline -opc) "$token"
    set -l lines ($words[1] __complete -- $words 2>/dev/null)
    set -l flag (string match -r -- '^--[^=]*=' "$token")
    for line in $lines[2..]
        echo -- "$flag"(string replace -r -- '=(\t|$)' '$1' $line)
    end
    switch "$lines[1]"
        case files
            __fish_complete_path "$token"
        case directories
            __fish_complete_directories "$token"
    end
end

complete -c {0} -f -a '(__{0}_complete)'
)";

// bash cuts "--flag=value" into three words, here and at the cursor.
std::vector<std::string> JoinAssignments(const std::vector<std::string>& words) {
  std::vector<std::string> joined;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool is_sign = words[i] == "=" && !joined.empty() && joined.back().starts_with("--");
    if (!is_sign) {
      joined.push_back(words[i]);
      continue;
    }
    joined.back() += "=";
    if (i + 1 < words.size()) joined.back() += words[++i];
  }
  return joined;
}

const Option* FindOption(const Command& command, std::string_view name) {
  for (const Option& option : command.options)
    if (std::ranges::find(option.names, name) != option.names.end()) return &option;
  return nullptr;
}

class Completer {
 public:
  explicit Completer(const Command& root) : command_(&root) {}

  void Pass(const std::string& word) {
    if (value_of_ != nullptr) {
      value_of_ = nullptr;
    } else if (word.starts_with('-')) {
      const size_t equals = word.find('=');
      const Option* option = FindOption(*command_, word.substr(0, equals));
      if (option == nullptr) return;
      given_.insert(option->names.front());
      if (equals == word.npos && option->value.kind != ValueKind::kNone) value_of_ = option;
    } else if (const Command* below = FindSubcommand(*command_, word)) {
      command_ = below;
      given_.clear();
    }
  }

  Completion CompleteWord(const std::string& word) {
    const size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    if (value_of_ != nullptr) {
      AddValue(value_of_->value, word);
    } else if (equals != word.npos) {
      if (const Option* option = FindOption(*command_, word.substr(0, equals)))
        AddValue(option->value, word.substr(equals + 1));
    } else if (word.starts_with('-')) {
      for (const Option& option : command_->options) AddFlag(option, word);
    } else {
      for (const Command& below : command_->commands) Add(LastWord(below), below.summary, word);
      for (const Option& positional : command_->positionals) AddValue(positional.value, word);
    }
    return std::move(completion_);
  }

 private:
  void Add(const std::string& word, const std::string& description, const std::string& begin) {
    if (word.starts_with(begin)) completion_.candidates.push_back({word, description});
  }

  void AddValue(const Value& value, const std::string& begin) {
    for (const std::string& choice : value.choices) Add(choice, "", begin);
    if (value.kind == ValueKind::kFile ||
        (value.kind == ValueKind::kDirectory && completion_.paths == ValueKind::kNone))
      completion_.paths = value.kind;
  }

  void AddFlag(const Option& option, const std::string& begin) {
    if (given_.contains(option.names.front()) && !option.repeated) return;
    for (const std::string& other : option.excludes)
      if (given_.contains(other)) return;
    const bool takes_value = option.value.kind != ValueKind::kNone;
    for (const std::string& name : option.names)
      Add(takes_value && name.starts_with("--") ? name + "=" : name, option.description, begin);
  }

  const Command* command_;
  const Option* value_of_ = nullptr;  // whose value the next word is
  std::set<std::string> given_;       // first names of the flags of command_ so far
  Completion completion_;
};

}  // namespace

Completion Complete(const Command& root, std::vector<std::string> words) {
  words = JoinAssignments(words);
  if (words.size() < 2) return {};
  Completer completer(root);
  for (size_t i = 1; i + 1 < words.size(); ++i) completer.Pass(words[i]);
  return completer.CompleteWord(words.back());
}

std::string CompletionText(const Completion& completion) {
  std::string text = completion.paths == ValueKind::kFile        ? "files\n"
                     : completion.paths == ValueKind::kDirectory ? "directories\n"
                                                                 : "none\n";
  for (const Candidate& candidate : completion.candidates)
    text += fmt::format("{}\t{}\n", candidate.word, candidate.description);
  return text;
}

std::string BashScript(std::string_view program) { return fmt::format(kBashScript, program); }
std::string ZshScript(std::string_view program) { return fmt::format(kZshScript, program); }
std::string FishScript(std::string_view program) { return fmt::format(kFishScript, program); }

}  // namespace cairn::manual
