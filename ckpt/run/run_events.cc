#include "ckpt/run/run_events.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ckpt/io/replace_file.h"
#include "ckpt/io/strict_json.h"
#include "ckpt/model/manifest.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxEventsBytes = 64 << 20;
constexpr size_t kMostLines = 1000;
constexpr const char* kKinds[] = {"start", "save", "save_failed", "end", "alarm", "gave_up_local"};

std::string PathOf(const std::string& run_dir) { return JoinPath(run_dir, kEventsName); }

std::string LineOf(const RunEvent& event) {
  nlohmann::ordered_json line = {{"event", kKinds[static_cast<size_t>(event.kind)]}, {"time", event.time}};
  switch (event.kind) {
    case RunEventKind::kStart:
      line.update({{"hosts", event.hosts}, {"ranks", event.ranks}, {"seconds", event.seconds}});
      if (event.local) line["local"] = true;
      if (event.step >= 0) line.update({{"step", event.step}, {"tier", event.tier}});
      if (event.step_time > 0) line["step_time"] = event.step_time;
      break;
    case RunEventKind::kSave:
      line.update({{"step", event.step}, {"stall", event.stall}, {"seconds", event.seconds}});
      break;
    case RunEventKind::kEnd:
      line["how"] = event.how;
      if (!event.why.empty()) line["why"] = event.why;
      break;
    case RunEventKind::kNotSaved:
    case RunEventKind::kAlarm:
      line.update({{"step", event.step}, {"why", event.why}});
      break;
    case RunEventKind::kGaveUpLocal:
      if (event.step >= 0) line["step"] = event.step;
      line["why"] = event.why;
  }
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

double Number(const nlohmann::json& line, const char* name) {
  const auto field = line.find(name);
  const double number = field != line.end() && field->is_number() ? field->get<double>() : 0;
  return std::isfinite(number) && number >= 0 ? number : 0;
}

// nullopt: an event of a later version.
Result<std::optional<RunEvent>> EventOf(std::string_view text) {
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json line, ParseStrictJson(text));
  if (!line.is_object() || Number(line, "time") <= 0 || TextField(line, "event").empty())
    return Corrupt("not an event with a time");
  const auto kind = std::ranges::find(kKinds, TextField(line, "event"));
  if (kind == std::end(kKinds)) return std::optional<RunEvent>();
  RunEvent event{.kind = static_cast<RunEventKind>(kind - std::begin(kKinds)),
                 .time = Number(line, "time"),
                 .ranks = IntField(line, "ranks"),
                 .local = line.value("local", nlohmann::json()) == true,
                 .seconds = Number(line, "seconds"),
                 .step = line.contains("step") ? IntField(line, "step") : -1,
                 .tier = TextField(line, "tier"),
                 .step_time = Number(line, "step_time"),
                 .stall = Number(line, "stall"),
                 .how = TextField(line, "how"),
                 .why = TextField(line, "why")};
  for (const nlohmann::json& host : line.value("hosts", nlohmann::json::array()))
    if (host.is_string()) event.hosts.push_back(host.get<std::string>());
  return std::optional(std::move(event));
}

std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

Result<std::vector<RunEvent>> ReadEvents(FileSystem& fs, const std::string& run_dir) {
  const Result<std::string> text = ReadSmallFile(fs, PathOf(run_dir), kMaxEventsBytes);
  if (text.status().kind() == StatusKind::kNotFound) return std::vector<RunEvent>();
  if (!text.ok()) return text.status();
  std::vector<RunEvent> events;
  int64_t number = 0;
  for (const std::string_view line : LinesOf(*text)) {
    Result<std::optional<RunEvent>> event = EventOf(line);
    if (++number; !event.ok())
      return Corrupt(
          "{} line {}: {}; without the file nothing is known of its starts, and its steps are unchanged",
          PathOf(run_dir), number, event.status().message());
    if (*event) events.push_back(**std::move(event));
  }
  return events;
}

Status AppendEvent(FileSystem& fs, const std::string& run_dir, const RunEvent& event) {
  const Result<std::string> before = ReadSmallFile(fs, PathOf(run_dir), kMaxEventsBytes);
  if (!before.ok() && before.status().kind() != StatusKind::kNotFound) return before.status();
  std::string text;
  if (before.ok()) {
    const std::vector<std::string_view> lines = LinesOf(*before);
    for (size_t i = lines.size() - std::min(lines.size(), kMostLines - 1); i < lines.size(); ++i)
      text.append(lines[i]).append("\n");
  }
  return ReplaceSmallFile(fs, PathOf(run_dir), text + LineOf(event));
}

}  // namespace cairn
