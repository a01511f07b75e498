#include "convert/foreign/layouts.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "built_in_layouts.h"
#include "ckpt/base/glob.h"
#include "ckpt/base/json_facts.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/io/strict_json.h"

namespace cairn {
namespace {

using nlohmann::json;

Result<TrainerLayout> ReadLayout(const std::string& file, const json& row) {
  JsonFacts of(file + ": ", row);
  TrainerLayout layout{.program = of.Text("program"),
                       .format = of.Text("format", ""),
                       .steps = of.Texts("steps"),
                       .files = of.Texts("files"),
                       .trackers = of.Texts("trackers"),
                       .last = of.Text("last", ""),
                       .unfinished = of.Text("unfinished", ""),
                       .last_after = of.Text("last_after", ""),
                       .without_last = of.Texts("without_last"),
                       .models = of.Texts("models"),
                       .configs = of.Texts("configs"),
                       .beside = of.Texts("beside")};
  for (const json& parts : of.Rows("parts")) {
    JsonFacts facts(fmt::format("{}: {}: ", file, layout.program), parts);
    layout.parts.push_back({facts.Text("model"), facts.Text("optimizer")});
    CAIRN_RETURN_IF_ERROR(facts.NoUnknown());
  }
  CAIRN_RETURN_IF_ERROR(of.NoUnknown());
  for (const std::string& step : layout.steps)
    if (!step.ends_with('#') || layout.format.empty())
      return InvalidArgument("{}: {}: steps: {} must end with '#', and the row needs a format", file,
                             layout.program, step);
  return layout;
}

std::vector<TrainerLayout>& AllLayouts() {
  static std::vector<TrainerLayout> layouts = [] {
    Result<std::vector<TrainerLayout>> read = ReadLayouts("layouts.json", kLayoutsText);
    if (!read.ok()) throw std::logic_error(read.status().message());
    return *std::move(read);
  }();
  return layouts;
}

}  // namespace

std::optional<int64_t> TrainerLayout::StepOf(std::string_view name) const {
  const auto number = [&](std::string_view pattern) -> std::optional<int64_t> {
    std::string_view rest = name;
    for (const char c : pattern.substr(0, pattern.size() - 1)) {
      if (c == '#' ? !TakeNumber<int64_t>(rest) : !rest.starts_with(c)) return std::nullopt;
      if (c != '#') rest.remove_prefix(1);
    }
    return ParseNumber<int64_t>(rest, 0);
  };
  for (const std::string& pattern : steps)
    if (const auto step = number(pattern)) return step;
  return std::nullopt;
}

std::optional<int64_t> TrainerLayout::StepOfFile(const std::string& name) const {
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  for (auto begin = files.empty() ? name.end() : std::ranges::find_if(name, digit); begin != name.end();) {
    const auto end = std::find_if_not(begin, name.end(), digit);
    const std::string pattern = std::string(name.begin(), begin) + '#' + std::string(end, name.end());
    if (FitsAnyGlob(pattern, files)) return ParseNumber<int64_t>({begin, end}, 0);
    begin = std::find_if(end, name.end(), digit);
  }
  return std::nullopt;
}

std::span<const TrainerLayout> TrainerLayouts() { return AllLayouts(); }

void PutFirst(std::vector<TrainerLayout> layouts) {
  std::vector<TrainerLayout>& all = AllLayouts();
  all.insert(all.begin(), std::make_move_iterator(layouts.begin()), std::make_move_iterator(layouts.end()));
}

Result<std::vector<TrainerLayout>> ReadLayouts(const std::string& file, std::string_view text) {
  const Result<json> rows = ParseStrictJson(text);
  if (!rows.ok()) return rows.status().WithContext(file);
  if (!rows->is_array()) return InvalidArgument("{}: it must be a list of objects", file);
  std::vector<TrainerLayout> layouts;
  for (const json& row : *rows) {
    CAIRN_ASSIGN_OR_RETURN(layouts.emplace_back(), ReadLayout(file, row));
  }
  return layouts;
}

}  // namespace cairn
