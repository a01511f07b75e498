#include "tools/doctor/finding.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ckpt/base/enum_names.h"

namespace cairn {
namespace {

constexpr std::string_view kNames[] = {"ok", "slower", "warning", "unknown", "loses data"};

}  // namespace

std::string_view Name(Severity severity) { return NameIn<Severity::kLosesData>(kNames, severity); }

Finding NotTold(Finding row, std::string why) {
  row.found = std::move(why);
  row.severity = Severity::kUnknown;
  return row;
}

void Worsen(Finding& row, std::string meaning, std::string change, Severity severity) {
  row.meaning = std::move(meaning);
  row.change = std::move(change);
  row.severity = severity;
}

bool Differs(const Finding& a, const Finding& b) {
  return a.severity != b.severity || a.meaning != b.meaning || (!a.measured && a.found != b.found);
}

nlohmann::ordered_json ToJson(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& f : findings)
    list.push_back({{"name", f.name},
                    {"severity", Name(f.severity)},
                    {"found", f.found},
                    {"meaning", f.meaning},
                    {"change", f.change},
                    {"measured", f.measured}});
  return list;
}

Result<std::vector<Finding>> FindingsOf(const nlohmann::json& json) {
  std::vector<Finding> findings;
  try {
    for (const nlohmann::json& row : json) {
      const auto severity = std::ranges::find(kNames, row.at("severity").get<std::string>());
      if (severity == std::end(kNames)) return Corrupt("there is no severity {}", row["severity"].dump());
      findings.push_back({.name = row.at("name"),
                          .found = row.at("found"),
                          .meaning = row.at("meaning"),
                          .change = row.at("change"),
                          .severity = static_cast<Severity>(severity - std::begin(kNames)),
                          .measured = row.at("measured")});
    }
  } catch (const nlohmann::json::exception& error) {
    return Corrupt("this is not a list of findings: {}", error.what());
  }
  return findings;
}

}  // namespace cairn
