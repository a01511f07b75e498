#include "runtime/config/rope_scaling.h"

#include <map>
#include <nlohmann/json.hpp>

namespace cairn {
namespace {

using nlohmann::json;
using Kind = RopeScaling::Kind;

// Takes fields out of the object one by one; the fields that are left are unknown.
class ScalingFields {
 public:
  explicit ScalingFields(const json& scaling) : left_(scaling) {}

  // If it is missing or null: `fallback`, or an error if that is below 0.
  double Number(const char* name, double fallback) {
    const json value = Take(name);
    if (value.is_number() && value.get<double>() > 0) return value.get<double>();
    if (value.is_null() && fallback >= 0) return fallback;
    Fail(InvalidArgument("rope_scaling: {} is {}; it must be a number above 0", name,
                         value.is_null() ? "missing" : value.dump()));
    return 1;
  }

  bool Switch(const char* name, bool fallback) {
    const json value = Take(name);
    if (!value.is_null() && !value.is_boolean())
      Fail(InvalidArgument("rope_scaling: {} is {}; it must be true or false", name, value.dump()));
    return value.is_boolean() ? value.get<bool>() : fallback;
  }

  std::vector<double> Numbers(const char* name, int64_t count) {
    const json list = Take(name);
    std::vector<double> numbers;
    for (const json& value : list)
      if (value.is_number() && value.get<double>() > 0) numbers.push_back(value.get<double>());
    if (!list.is_array() || static_cast<int64_t>(numbers.size()) != count || list.size() != numbers.size())
      Fail(InvalidArgument("rope_scaling: {} must be {} numbers above 0", name, count));
    return numbers;
  }

  Status Finish(const std::string& kind) {
    for (const auto& [name, value] : left_.items())
      if (!value.is_null())
        Fail(
            NotSupported("rope_scaling: {} is {}, which {} has no place for here", name, value.dump(), kind));
    return status_;
  }

 private:
  json Take(const char* name) {
    const json value = left_.value(name, json());
    left_.erase(name);
    return value;
  }
  void Fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  json left_;
  Status status_;
};

}  // namespace

Result<RopeScaling> ReadRopeScaling(const json& scaling, double positions, int64_t frequencies) {
  static const std::map<std::string, Kind> kKinds = {
      {"default", Kind::kNone}, {"linear", Kind::kLinear},     {"dynamic", Kind::kDynamic},
      {"yarn", Kind::kYarn},    {"longrope", Kind::kLongRope}, {"llama3", Kind::kLlama3}};
  RopeScaling read;
  if (scaling.is_null()) return read;
  if (!scaling.is_object())
    return InvalidArgument("rope_scaling is {}; it must be an object", scaling.dump());
  json fields = scaling;
  json name = fields.value("rope_type", json());
  fields.erase("rope_type");
  const auto kind = kKinds.find(name.is_string() ? name.get<std::string>() : "");
  if (kind == kKinds.end())
    return NotSupported("rope_scaling of the kind {}; known are linear, dynamic, yarn, longrope, llama3",
                        name.dump());
  read.kind = kind->second;
  ScalingFields of(fields);
  const bool stretches = read.kind == Kind::kYarn || read.kind == Kind::kLongRope;
  if (stretches || read.kind == Kind::kLlama3)
    read.original_positions =
        of.Number("original_max_position_embeddings", read.kind == Kind::kLlama3 ? -1 : positions);
  if (stretches) {
    read.factor = of.Number("factor", positions / read.original_positions);
    read.attention_factor = of.Number("attention_factor", 0);
  } else if (read.kind != Kind::kNone) {
    read.factor = of.Number("factor", -1);
  }
  if (read.kind == Kind::kYarn) {
    read.beta_fast = of.Number("beta_fast", read.beta_fast);
    read.beta_slow = of.Number("beta_slow", read.beta_slow);
    read.mscale = of.Number("mscale", 0);
    read.mscale_all_dim = of.Number("mscale_all_dim", 0);
    read.truncate = of.Switch("truncate", true);
  }
  if (read.kind == Kind::kLlama3) {
    read.low_freq_factor = of.Number("low_freq_factor", -1);
    read.high_freq_factor = of.Number("high_freq_factor", -1);
  }
  if (read.kind == Kind::kLongRope) {
    read.short_factor = of.Numbers("short_factor", frequencies);
    read.long_factor = of.Numbers("long_factor", frequencies);
  }
  CAIRN_RETURN_IF_ERROR(of.Finish(name.get<std::string>()));
  return read;
}

}  // namespace cairn
