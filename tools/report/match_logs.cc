// By evidence, the strongest first: the script's --output pattern, names with the same beginning, equal
// flags. A script whose flags differ from the log's is excluded, under any name.
#include "tools/report/match_logs.h"

#include <fmt/format.h>

#include <set>

#include "tools/report/config_name.h"
#include "tools/report/numbers.h"

namespace cairn {
namespace {

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
