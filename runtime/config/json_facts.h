// Reads typed facts out of a JSON object: of a manifest's model, of its rope_scaling.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// The first fact that is missing or of the wrong type becomes the status. A null counts as missing.
class JsonFacts {
 public:
  // `whose` begins the messages: "the model's ". `facts` must outlive this.
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
  // Required.
  std::string Text(const char* name) {
    const nlohmann::json value = Take(name);
    if (!value.is_string()) Fail(name, value, "a text");
    return value.is_string() ? value.get<std::string>() : "";
  }

  // Errors: NotSupported naming a fact that was not asked for; `by` does not know it.
  Status NoOthers(const std::string& by) {
    for (const auto& [name, value] : facts_.items())
      if (status_.ok() && !value.is_null() && !taken_.contains(name))
        status_ = NotSupported("{}{} is {}, which {} does not support here", whose_, name, value.dump(), by);
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
