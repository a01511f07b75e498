// The script is not run but read line by line: assignments are kept, with the variables in them expanded, and
// each line with flags is read as a command line after the same expansion. Expressions that only a shell can
// compute are left unchanged, and are not numbers. A log's name is matched against Slurm's pattern with `*`
// for everything that the script does not determine.

#include "tools/report/job_script.h"

#include <map>

#include "ckpt/base/glob.h"
#include "tools/report/config_name.h"
#include "tools/report/config_text.h"
#include "tools/report/numbers.h"

namespace cairn {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

constexpr size_t kMaxLine = 16384;

// The line with known $NAME and ${NAME} expanded.
std::string Expanded(std::string_view line, const Variables& variables) {
  std::string out;
  for (size_t at = 0; at < line.size() && out.size() < kMaxLine; ++at) {
    if (line[at] != '$') {
      out += line[at];
      continue;
    }
    const bool brace = at + 1 < line.size() && line[at + 1] == '{';
    size_t end = at + 1 + brace;
    while (end < line.size() && IsWordCharacter(line[end])) ++end;
    const auto found = variables.find(line.substr(at + 1 + brace, end - at - 1 - brace));
    if (found == variables.end() || (brace && (end >= line.size() || line[end] != '}'))) {
      out += line[at];
      continue;
    }
    out += found->second;
    at = end - 1 + brace;
  }
  return out;
}

std::string UnquotedWord(std::string_view value) {
  value = Trim(value.substr(0, value.find(" #")));
  if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0])
    value = value.substr(1, value.size() - 2);
  return std::string(value.substr(0, 1000));
}

// "NAME=value" or "export NAME=value".
void TakeAssignment(std::string_view line, Variables& variables) {
  line = Trim(line);
  if (line.starts_with("export ")) line = Trim(line.substr(7));
  size_t end = 0;
  while (end < line.size() && IsWordCharacter(line[end])) ++end;
  if (end == 0 || end >= line.size() || line[end] != '=' || variables.size() > 1000) return;
  variables[std::string(line.substr(0, end))] = Expanded(UnquotedWord(line.substr(end + 1)), variables);
}

// The value of "--name=value", "--name value" or "-n value"; empty if the line has no such option.
std::string Option(std::string_view line, std::string_view name, std::string_view letter) {
  for (const std::string_view flag : {name, letter}) {
    const size_t at = line.find(flag);
    if (at == line.npos) continue;
    std::string_view rest = line.substr(at + flag.size());
    if (rest.empty() || (rest[0] != '=' && rest[0] != ' ')) continue;
    rest = Trim(rest.substr(1));
    return UnquotedWord(rest.substr(0, rest.find(' ')));
  }
  return "";
}

void TakeDirective(std::string_view line, JobScript& script) {
  if (const std::string name = Option(line, "--job-name", " -J"); !name.empty()) script.job_name = name;
  if (const std::string output = Option(line, "--output", " -o"); !output.empty()) script.output = output;
  if (const auto nodes = CountAt(Option(line, "--nodes", " -N")); nodes && *nodes > 0)
    script.config.nodes = *nodes;
}

std::string_view BaseName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

JobScript ReadJobScript(std::string_view text, const std::string& path) {
  JobScript script;
  script.path = path;
  Variables variables;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, std::min(newline, kMaxLine));
    text.remove_prefix(newline == text.npos ? text.size() : newline + 1);
    const std::string_view trimmed = Trim(line);
    if (trimmed.starts_with("#SBATCH")) TakeDirective(trimmed, script);
    if (trimmed.starts_with('#')) continue;
    TakeAssignment(line, variables);
    if (line.find("--") != line.npos) TakeCommandLine(Expanded(line, variables), script.config);
  }
  FillFrom(ConfigFromName(path), script.config);
  return script;
}

bool MatchesOutput(std::string_view log_name, std::string_view pattern, std::string_view job_name) {
  std::string glob;
  const auto literally = [&glob](std::string_view text) {
    for (const char c : text) glob += {'\\', c};
  };
  pattern = BaseName(pattern);
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 >= pattern.size()) {
      literally(pattern.substr(i, 1));
      continue;
    }
    ++i;
    while (i + 1 < pattern.size() && IsDigit(pattern[i])) ++i;  // %4j
    if (pattern[i] == 'x')
      literally(job_name);
    else
      glob += '*';
  }
  return FitsGlob(std::string(BaseName(log_name)), glob);
}

}  // namespace cairn
