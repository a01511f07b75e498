// A script is not run but read line by line: assignments are kept, with the variables in them expanded, and
// each line with flags is read as a command line after the same expansion. Expressions that only a shell can
// compute are left unchanged, and are not numbers. A log's name is matched against Slurm's pattern with `*`
// for everything that the script does not determine.
//
// Pairs are found by evidence, the strongest first: the script's --output pattern, names with the same
// beginning, equal flags. A script whose flags differ from the log's is excluded, under any name.
#include "tools/report/match_logs.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "ckpt/base/glob.h"
#include "ckpt/base/split_text.h"
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

constexpr int kLeastFlags = 3;

struct Evidence {
  int strength = 0;  // 0: none
  std::string what;
};

RunConfig ConfigOf(const TrainingLog& log) {
  RunConfig config = log.starts.back().config;
  FillFrom(ConfigFromName(log.file), config);
  return config;
}

// True if `stem` begins with `name` as a whole word.
bool BeginsWith(std::string_view stem, std::string_view name) {
  return name.size() >= 3 && stem.starts_with(name) &&
         (stem.size() == name.size() || !(IsLetter(stem[name.size()]) || IsDigit(stem[name.size()])));
}

Evidence Weigh(const TrainingLog& log, const JobScript& script) {
  const auto same = EqualFields(ConfigOf(log), script.config);
  if (!same) return {};
  const int equal = *same;
  const std::string_view stem = StemOf(log.file);
  const bool names_job =
      script.output.find("%x") != script.output.npos || script.output.find('%') == script.output.npos;
  if (!script.output.empty() && names_job && MatchesOutput(log.file, script.output, script.job_name))
    return {3000 + equal, "its --output"};
  if (BeginsWith(stem, StemOf(script.path))) return {2000 + equal, "its name"};
  if (BeginsWith(stem, script.job_name)) return {1000 + equal, "its job name"};
  if (equal >= kLeastFlags) return {equal, fmt::format("{} equal flags", equal)};
  return {};
}

// The last run of at least three digits in a name: Slurm's number of the job.
std::string JobNumber(std::string_view stem) {
  constexpr std::string_view kDigits = "0123456789";
  while (stem.find_first_of(kDigits) != stem.npos) {
    stem = stem.substr(0, stem.find_last_of(kDigits) + 1);
    const size_t begin = stem.find_last_not_of(kDigits) + 1;
    if (stem.size() - begin >= 3 && (begin == 0 || !IsLetter(stem[begin - 1])))
      return std::string(stem.substr(begin));
    stem = stem.substr(0, begin);
  }
  return "";
}

std::string NewName(const std::string& log, const JobScript& script) {
  const std::string_view stem = StemOf(log), wanted = StemOf(script.path);
  if (BeginsWith(stem, wanted)) return "";
  const size_t slash = log.rfind('/');
  const std::string number = JobNumber(stem);
  const std::string_view name = std::string_view(log).substr(slash == log.npos ? 0 : slash + 1);
  const std::string_view suffix = name.substr(stem.size());
  return (slash == log.npos ? "" : log.substr(0, slash + 1)) + std::string(wanted) +
         (number.empty() ? "" : "." + number) + std::string(suffix.empty() ? ".out" : suffix);
}

}  // namespace

JobScript ReadJobScript(std::string_view text, const std::string& path) {
  JobScript script;
  script.path = path;
  Variables variables;
  for (std::string_view line : SplitText(text, '\n')) {
    line = line.substr(0, kMaxLine);
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

std::vector<LogMatch> MatchLogs(const std::vector<TrainingLog>& logs, const std::vector<JobScript>& scripts) {
  std::vector<LogMatch> matches;
  std::set<std::string> names;
  for (const TrainingLog& log : logs) names.insert(log.file);
  for (const TrainingLog& log : logs) {
    LogMatch match{.log = log.file, .script = {}, .evidence = {}, .rename = {}};
    Evidence best;
    const JobScript* of = nullptr;
    for (const JobScript& script : scripts) {
      const Evidence evidence = Weigh(log, script);
      if (evidence.strength > best.strength) {
        best = evidence;
        of = &script;
      } else if (evidence.strength == best.strength) {
        of = nullptr;  // equally good: neither
      }
    }
    if (of) {
      match.script = of->path;
      match.evidence = best.what;
      match.rename = NewName(log.file, *of);
      for (int k = 2; !match.rename.empty() && !names.insert(match.rename).second; ++k)
        match.rename = NewName(log.file, *of) + fmt::format(".{}", k);
    } else if (best.strength > 0) {
      match.evidence = "several scripts match equally well";
    }
    matches.push_back(std::move(match));
  }
  return matches;
}

}  // namespace cairn
