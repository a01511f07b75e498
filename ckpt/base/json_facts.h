// Reads typed facts out of a JSON object: of a manifest's model, of its rope_scaling, of a family's file.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "ckpt/base/nearest_name.h"
#include "ckpt/base/status.h"

namespace cairn {

// The first fact that is missing or of the wrong type becomes the status. A null counts as missing.
class JsonFacts {
 public:
  // `whose` starts each message: "the model's ". `facts` must outlive this.
  JsonFacts(std::string whose, const nlohmann::json& facts) : whose_(std::move(whose)), facts_(facts) {}

  // Required: an integer from 1 to `most`.
  int64_t Size(const char* name, int64_t most) {
    const nlohmann::json value = Take(name);
    if (value.is_number_integer() && value > 0 && value <= most) return value.get<int64_t>();
    Fail(name, value, fmt::format("an integer from 1 to {}", most));
    return 1;
  }
  // Above 0; required if `fallback` is below 0.
  double Number(const char* name, double fallback) {
    const nlohmann::json value = Take(name);
    if (value.is_number() && value.get<double>() > 0) return value.get<double>();
    if (!value.is_null() || fallback < 0) Fail(name, value, "a number above 0");
    return fallback;
  }
  // Required: `count` numbers above 0.
  std::vector<double> Numbers(const char* name, int64_t count) {
    const nlohmann::json list = Take(name);
    std::vector<double> numbers;
    for (const nlohmann::json& value : list)
      if (value.is_number() && value.get<double>() > 0) numbers.push_back(value.get<double>());
    if (!list.is_array() || static_cast<int64_t>(numbers.size()) != count || list.size() != numbers.size())
      Fail(name, list, fmt::format("{} numbers above 0", count));
    return numbers;
  }
  bool Switch(const char* name, bool fallback = false) {
    const nlohmann::json value = Take(name);
    if (!value.is_null() && !value.is_boolean()) Fail(name, value, "true or false");
    return value.is_boolean() ? value.get<bool>() : fallback;
  }
  // Required unless there is a `fallback`.
  std::string Text(const char* name, const char* fallback = nullptr) {
    const nlohmann::json value = Take(name);
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_null() || fallback == nullptr) Fail(name, value, "a text");
    return fallback == nullptr ? "" : fallback;
  }
  // A list of texts, or one text; empty if it is missing.
  std::vector<std::string> Texts(const char* name) {
    nlohmann::json list = Take(name);
    if (list.is_string()) list = nlohmann::json::array({list});
    std::vector<std::string> texts;
    for (const nlohmann::json& value : list)
      if (value.is_string()) texts.push_back(value.get<std::string>());
    if (!list.is_null() && (!list.is_array() || list.size() != texts.size()))
      Fail(name, list, "a text or a list of texts");
    return texts;
  }
  // A list of objects; empty if it is missing.
  nlohmann::json Rows(const char* name) {
    nlohmann::json list = Take(name);
    const auto is_object = [](const nlohmann::json& row) { return row.is_object(); };
    if (list.is_array() && std::ranges::all_of(list, is_object)) return list;
    if (!list.is_null()) Fail(name, list, "a list of objects");
    return nlohmann::json::array();
  }
  // Empty if it is missing.
  nlohmann::json Object(const char* name) {
    nlohmann::json value = Take(name);
    if (value.is_object()) return value;
    if (!value.is_null()) Fail(name, value, "an object");
    return nlohmann::json::object();
  }
  // A value of any type; null if it is missing.
  nlohmann::json Value(const char* name) { return Take(name); }

  // Errors: NotSupported naming a fact that was not asked for; `by` does not know it.
  Status NoOthers(const std::string& by) {
    for (const auto& [name, value] : facts_.items())
      if (status_.ok() && !value.is_null() && !taken_.contains(name))
        status_ = NotSupported("{}{} is {}, which {} does not support here", whose_, name, value.dump(), by);
    return status_;
  }
  // Errors: InvalidArgument naming a key that was not asked for.
  Status NoUnknown() {
    for (const auto& [name, value] : facts_.items()) {
      if (!status_.ok() || taken_.contains(name)) continue;
      const std::string nearest = NearestName({taken_.begin(), taken_.end()}, name);
      status_ = InvalidArgument("{}unknown key '{}'{}", whose_, name,
                                nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
    }
    return status_;
  }
  const Status& status() const { return status_; }

 private:
  nlohmann::json Take(const char* name) {
    taken_.insert(name);
    return facts_.value(name, nlohmann::json());
  }
  void Fail(const char* name, const nlohmann::json& value, std::string_view wanted) {
    if (status_.ok())
      status_ = InvalidArgument("{}{} is {}; it must be {}", whose_, name,
                                value.is_null() ? "missing" : value.dump(), wanted);
  }

  const std::string whose_;
  const nlohmann::json& facts_;
  std::set<std::string> taken_;
  Status status_;
};

}  // namespace cairn
