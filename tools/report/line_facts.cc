// Each function reads one line and keeps no state: it finds fixed words and takes the number and the unit
// after them, or compares a fixed form (dates, prefixes).

#include "tools/report/line_facts.h"

#include <algorithm>
#include <chrono>

#include "tools/report/numbers.h"

namespace cairn {
namespace {

// The number after `name` in GiB; without a unit it counts `gib` each. 0 if there is no number.
double GibAfter(std::string_view text, std::string_view name, double gib) {
  const std::string_view rest = After(text, name);
  const auto number = NumberAt(rest);
  if (!number || !(number->value > 0) || number->value > 1e15) return 0;
  const std::string_view unit = Trim(rest.substr(number->length));
  if (unit.starts_with("GB") || unit.starts_with("GiB")) gib = 1;
  if (unit.starts_with("MB") || unit.starts_with("MiB")) gib = 1.0 / 1024;
  return number->value * gib;
}

// The last number of "(min, max)", or a single number; -1 if there is none.
double LastNumber(std::string_view text) {
  double value = -1;
  for (int k = 0; k < 2; ++k) {
    text.remove_prefix(std::min(text.find_first_not_of(" (,:."), text.size()));
    const auto number = NumberAt(text);
    if (!number || !(number->value >= 0)) break;
    value = number->value;
    text.remove_prefix(number->length);
  }
  return value;
}

// The digits after a comma or a dot.
double FractionAt(std::string_view text, size_t at) {
  double value = 0, unit = 0.1;
  if (at >= text.size() || (text[at] != ',' && text[at] != '.')) return value;
  for (++at; at < text.size() && IsDigit(text[at]); ++at, unit /= 10) value += unit * (text[at] - '0');
  return value;
}

std::optional<double> DateAt(std::string_view text, size_t at) {
  constexpr std::string_view kForm = "0000-00-00?00:00:00";  // a digit, any character, or itself
  int64_t fields[6] = {};
  for (size_t i = 0, field = 0; i < kForm.size(); ++i) {
    const char c = at + i < text.size() ? text[at + i] : '\0';
    if (kForm[i] != '0') ++field;
    if (kForm[i] == '0' ? !IsDigit(c) : kForm[i] != '?' && kForm[i] != c) return std::nullopt;
    if (kForm[i] == '0') fields[field] = fields[field] * 10 + (c - '0');
  }
  const auto [year, month, day, hour, minute, second] = fields;
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(((days * 24 + hour) * 60 + minute) * 60 + second) +
         FractionAt(text, at + kForm.size());
}

}  // namespace

MemoryFacts MemoryIn(std::string_view text) {
  constexpr double kMib = 1.0 / 1024;
  MemoryFacts facts;
  facts.allocated_gib = std::max({GibAfter(text, "max allocated:", kMib), GibAfter(text, "Max_MA ", 1),
                                  GibAfter(text, "MaxMemAllocated=", 1)});
  facts.reserved_gib = std::max(
      {GibAfter(text, "max reserved:", kMib), GibAfter(text, "Max_CA ", 1), GibAfter(text, " memory:", 1)});
  return facts;
}

CheckpointFacts CheckpointIn(std::string_view text) {
  CheckpointFacts facts;
  if (const size_t saved = text.find("saved checkpoint"); saved != npos) {
    facts.saved_iteration = CountOf(After(text.substr(saved), "iteration"));
    facts.seconds = LastNumber(After(text, "(stall "));
    facts.local = text.find(" s, safe after ") != npos;
    facts.in_memory = facts.local && text.find(" to /dev/shm") != npos;
    facts.whole_seconds = LastNumber(After(text, facts.local ? " s, safe after " : " s, durable after "));
    return facts;
  }
  if (const size_t saved = text.find("Finished saving the checkpoint"); saved != npos) {
    facts.of_last_step = true;
    facts.seconds = LastNumber(After(text.substr(saved), "in "));
    return facts;
  }
  for (const std::string_view name : {"save-checkpoint", "save checkpoint"}) {
    const size_t at = text.find(name);
    if (at == npos) continue;
    std::string_view rest = text.substr(at + name.size());
    if (rest.empty() || (rest[0] != ':' && rest[0] != ' ')) continue;  // "--save-checkpoint-dir"
    const double milliseconds = LastNumber(rest);
    if (milliseconds >= 0) facts.seconds = milliseconds / 1000;
  }
  return facts;
}

std::optional<double> DateIn(std::string_view text) {
  for (size_t at = text.find("20"); at != npos && at + 19 <= text.size(); at = text.find("20", at + 1))
    if (const auto date = DateAt(text, at)) return date;
  return std::nullopt;
}

std::string_view SpeakerOf(std::string_view text) {
  text = Trim(text.substr(0, 48));
  size_t end = 0;
  while (end < text.size() && IsDigit(text[end])) ++end;
  if (end > 0 && end < text.size() && text[end] == ':') return text.substr(0, end);
  if (text.empty() || text[0] != '[') return {};
  const size_t close = text.find(']');
  if (close == npos || close < 2) return {};
  const std::string_view inner = text.substr(1, close - 1);
  const bool rank = inner.starts_with("default") || inner.starts_with("rank") || inner.find(',') != npos;
  return rank && IsDigit(inner.back()) && inner.find(':') == npos ? inner : std::string_view();
}

}  // namespace cairn
