// Every text has its own quoting, because every reader has its own: Slurm for #SBATCH lines and for file
// names with %, bash, systemd for command lines and for bare values, cron for % and sh for the rest.
#include "tools/archive/schedule/schedule.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "ckpt/base/digest.h"
#include "ckpt/base/enum_names.h"
#include "ckpt/base/filled_text.h"
#include "ckpt/base/utf8.h"
#include "schedule_texts.h"
#include "tools/process/shell_word.h"

namespace cairn {
namespace {

constexpr std::string_view kChainPrefix = "cairn-archive-";
constexpr std::string_view kMadeBy = "# Made by `cairn archive schedule`";
constexpr std::string_view kMadeBefore = "#SBATCH --job-name=cairn-archive\n";  // of scripts without kMadeBy
constexpr size_t kMaxLabel = 32;
constexpr size_t kMaxCronCommand = 998;  // cron's MAX_COMMAND, less its ends
constexpr int kHoursOfWeek = 24 * 7;

std::string IdOf(const std::string& policy) { return ToHex(DigestOf(policy)).substr(0, 8); }

// A minute of the hour that depends on the policy, so that the policies of one site do not start at once.
int MinuteOf(const std::string& policy) { return std::stoi(IdOf(policy).substr(0, 4), nullptr, 16) % 60; }

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// As a value of an #SBATCH line: "...", with a double quote as '"'. sbatch knows no other way: it drops a
// backslash, and a space after it ends the value.
std::string SbatchWord(const std::string& text) {
  if (ShellWord(text) == text) return text;
  std::string word = "\"";
  for (const char c : text) word += c == '"' ? "\"'\"'\"" : std::string(1, c);
  return word + '"';
}

std::string Doubled(const std::string& text, char mark) {
  std::string doubled;
  for (const char c : text) doubled.append(c == mark ? 2 : 1, c);
  return doubled;
}

// "..." of systemd, whose % is doubled. Bytes beyond ASCII are escaped: its files are UTF-8, our paths any
// bytes.
std::string UnitString(const std::string& text) {
  std::string word = "\"";
  for (const char c : Doubled(text, '%')) {
    if (c == '"' || c == '\\') word += '\\';
    if (static_cast<unsigned char>(c) < 0x80)
      word += c;
    else
      word += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return word + '"';
}

// An argument of ExecStart, in which systemd expands $ (not in the program's path).
std::string UnitArgument(const std::string& text) { return UnitString(Doubled(text, '$')); }

std::string RunLine(const ScheduleOptions& o) {
  return fmt::format("{} archive run --policy {}", ShellWord(o.cairn), ShellWord(o.policy));
}

Status CheckText(std::string_view option, const std::string& text) {
  if (std::none_of(text.begin(), text.end(), IsControl)) return OkStatus();
  return InvalidArgument("{}: {} has a newline or another control character, which no scheduler accepts",
                         option,
                         nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

Status CheckSystemd(const ScheduleOptions& o) {
  if (o.cairn.find_first_of("\"'\\") != o.cairn.npos)
    return InvalidArgument(
        "{}: systemd starts no program whose path has a quote or a backslash; name a link to it with "
        "--program",
        o.cairn);
  if (o.log.ends_with(' ') || o.log.ends_with('\\') || !IsUtf8(o.log))
    return InvalidArgument(
        "--log {}: systemd accepts no path that ends in a space or a backslash, or that is not UTF-8", o.log);
  return OkStatus();
}

Status CheckSlurm(const ScheduleOptions& o) {
  for (const auto& [option, text] : {std::pair{"--log", o.log}, std::pair{"--partition", o.partition},
                                     std::pair{"--account", o.account}, std::pair{"--time", o.time_limit}})
    if (text.find('\\') != text.npos)
      return InvalidArgument("{} {}: sbatch drops a backslash; give another", option, text);
  return OkStatus();
}

Status CheckInterval(const ScheduleOptions& o, Scheduler scheduler) {
  if (o.every_hours >= 1 && o.every_hours <= kHoursOfWeek &&
      (scheduler == Scheduler::kSlurm || 24 % o.every_hours == 0 || o.every_hours == kHoursOfWeek))
    return OkStatus();
  if (scheduler == Scheduler::kSlurm)
    return InvalidArgument("--every-hours {}: give 1 to {}", o.every_hours, kHoursOfWeek);
  return InvalidArgument(
      "--every-hours {}: {} can express only 1, 2, 3, 4, 6, 8, 12, 24 (daily) and 168 (weekly) hours; give "
      "one of these, or use --slurm, which takes any",
      o.every_hours, Name(scheduler));
}

}  // namespace

std::string_view Name(Scheduler scheduler) {
  return NameIn<Scheduler::kCron>({"slurm", "systemd", "cron"}, scheduler);
}

std::string ChainName(const ScheduleOptions& o) {
  std::string label = o.tag.empty() ? std::filesystem::path(o.policy).stem().string() : o.tag;
  label.resize(std::min(label.size(), kMaxLabel));
  for (char& c : label)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') c = '-';
  return fmt::format("{}{}-{}", kChainPrefix, label, IdOf(o.policy));
}

bool IsOfChain(std::string_view name, const std::string& policy) {
  return name.starts_with(kChainPrefix) && name.ends_with("-" + IdOf(policy)) && name.find(' ') == name.npos;
}

Status CheckSchedule(const ScheduleOptions& o, Scheduler scheduler) {
  const std::pair<std::string_view, std::string> texts[] = {
      {"the policy's path", o.policy}, {"the program's path", o.cairn}, {"--log", o.log},
      {"--script", o.script},          {"--partition", o.partition},    {"--account", o.account},
      {"--time", o.time_limit},        {"PATH", o.search_path}};
  for (const auto& [option, text] : texts) CAIRN_RETURN_IF_ERROR(CheckText(option, text));
  CAIRN_RETURN_IF_ERROR(CheckInterval(o, scheduler));
  if (scheduler == Scheduler::kSlurm) return CheckSlurm(o);
  if (scheduler == Scheduler::kSystemd) return CheckSystemd(o);
  const size_t length = CrontabLine(o).size();
  if (length <= kMaxCronCommand) return OkStatus();
  return InvalidArgument(
      "the crontab's line would have {} characters, but cron takes {}: shorten PATH or the policy's path",
      length, kMaxCronCommand);
}

std::string SlurmScript(const ScheduleOptions& o) {
  std::string site;
  if (!o.partition.empty()) site += fmt::format("#SBATCH --partition={}\n", SbatchWord(o.partition));
  if (!o.account.empty()) site += fmt::format("#SBATCH --account={}\n", SbatchWord(o.account));
  // With singleton the tasks of an array would also wait for each other.
  if (o.array > 1) site += fmt::format("#SBATCH --array=0-{}\n", o.array - 1);
  return FilledText(kSlurmText, {{"MADE_BY", std::string(kMadeBy)},
                                 {"NAME", ChainName(o)},
                                 {"TIME", SbatchWord(o.time_limit)},
                                 {"LOG", SbatchWord(Doubled(o.log, '%'))},
                                 {"SITE", site},
                                 {"SCRIPT", ShellWord(o.script)},
                                 {"POLICY", ShellWord(o.policy)},
                                 {"PREFIX", std::string(kChainPrefix)},
                                 {"ID", IdOf(o.policy)},
                                 {"HOURS", std::to_string(o.every_hours)},
                                 {"AFTER", o.array > 1 ? "afterany:$SLURM_ARRAY_JOB_ID" : "singleton"},
                                 {"RUN", RunLine(o)}});
}

std::string SystemdService(const ScheduleOptions& o) {
  const std::string path = "PATH=" + o.search_path;
  return FilledText(kServiceText,
                    {{"MADE_BY", std::string(kMadeBy)},
                     {"NAME", ChainName(o)},
                     {"LOG", Doubled(o.log, '%')},
                     {"PATH", o.search_path.empty() ? "" : fmt::format("Environment={}\n", UnitString(path))},
                     {"CAIRN", UnitString(o.cairn)},
                     {"POLICY", UnitArgument(o.policy)}});
}

std::string SystemdTimer(const ScheduleOptions& o) {
  const std::string hours = o.every_hours == kHoursOfWeek ? "Sun *-*-* 03"
                            : o.every_hours == 24         ? "*-*-* 03"
                                                          : fmt::format("*-*-* 00/{}", o.every_hours);
  return FilledText(kTimerText, {{"MADE_BY", std::string(kMadeBy)},
                                 {"NAME", ChainName(o)},
                                 {"HOURS", std::to_string(o.every_hours)},
                                 {"WHEN", fmt::format("{}:{:02}:00", hours, MinuteOf(o.policy))}});
}

std::string CrontabLine(const ScheduleOptions& o) {
  const std::string when = o.every_hours == kHoursOfWeek ? "3 * * 0"
                           : o.every_hours == 24         ? "3 * * *"
                                                         : fmt::format("*/{} * * *", o.every_hours);
  std::string command = o.search_path.empty() ? "" : fmt::format("PATH={} ", ShellWord(o.search_path));
  // Cron mails this output: only that a run has failed.
  command += fmt::format("{} >> {} 2>&1 || echo {}", RunLine(o), ShellWord(o.log),
                         ShellWord(fmt::format("{} failed: see {}", ChainName(o), o.log)));
  for (size_t at = 0; (at = command.find('%', at)) != command.npos; at += 2) command.insert(at, 1, '\\');
  return fmt::format("{} {} {} # {}\n", MinuteOf(o.policy), when, command, ChainName(o));
}

bool IsScheduleText(std::string_view text) {
  return text.find(kMadeBy) != text.npos || text.find(kMadeBefore) != text.npos;
}

std::string CrontabWithout(std::string_view crontab, const std::string& policy) {
  std::string kept;
  while (!crontab.empty()) {
    const size_t end = std::min(crontab.find('\n'), crontab.size() - 1) + 1;
    const std::string_view whole = crontab.substr(0, end);
    const std::string_view line = whole.substr(0, whole.size() - (whole.ends_with('\n') ? 1 : 0));
    const size_t mark = line.rfind("# ");
    if (mark == line.npos || !IsOfChain(line.substr(mark + 2), policy)) kept += whole;
    crontab.remove_prefix(end);
  }
  return kept;
}

}  // namespace cairn
