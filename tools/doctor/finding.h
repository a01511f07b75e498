// What `cairn doctor` reports about one fact: a row of its page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

enum class Severity {
  kGood,
  kSlower,
  kWarning,
  kUnknown,    // `found` says why
  kLosesData,  // exit status 1; docs/operations.md lists these findings
};

std::string_view Name(Severity severity);  // "ok", "slower", "warning", "unknown", "loses data"

struct Finding {
  std::string name;
  std::string found;
  std::string meaning;      // for saves here
  std::string change = {};  // what to do; empty: nothing
  Severity severity = Severity::kGood;
  bool measured = false;  // `found` differs each time
};

// The row for a fact that is not available.
Finding NotTold(Finding row, std::string why);

// Replaces what the row means and what to do about it.
void Worsen(Finding& row, std::string meaning, std::string change, Severity severity = Severity::kWarning);

// Whether another host's finding of this name tells a reader of this one something new.
bool Differs(const Finding& a, const Finding& b);

nlohmann::ordered_json ToJson(const std::vector<Finding>& findings);
// Errors: Corrupt.
Result<std::vector<Finding>> FindingsOf(const nlohmann::json& json);

}  // namespace cairn
