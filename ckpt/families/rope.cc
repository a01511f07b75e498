#include "ckpt/families/rope.h"

#include <array>

namespace cairn {
namespace {

using nlohmann::json;

// The value of the first of `keys` that is present and not null.
json FirstKey(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const json value = object.value(key, json()); !value.is_null()) return value;
  return nullptr;
}

// rope_scaling with the key that all versions since 4.43 know; null if it is the default.
json Scaling(json object) {
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) object.erase(key);
  if (object.contains("type") && !object.contains("rope_type")) object["rope_type"] = object["type"];
  object.erase("type");
  const bool is_default = object.empty() || object.value("rope_type", json("default")) == "default";
  return is_default ? json() : object;
}

}  // namespace

Status ReadRope(const json& config, json& model) {
  const json empty = json::object();
  json parameters = config.value("rope_parameters", json());
  if (!parameters.is_object()) parameters = empty;
  for (const auto& [key, value] : parameters.items())
    if (value.is_object())
      return NotSupported(
          "config.json: rope_parameters differ by kind of layer ({}), which no table supports", key);
  json scaling = config.value("rope_scaling", json());
  scaling = scaling.is_object() ? Scaling(scaling) : Scaling(parameters);
  json theta = FirstKey(parameters, {"rope_theta"});
  if (theta.is_null()) theta = FirstKey(config, {"rope_theta", "rotary_emb_base"});
  json percent = FirstKey(parameters, {"partial_rotary_factor"});
  if (percent.is_null()) percent = FirstKey(config, {"partial_rotary_factor", "rotary_pct"});
  if (!theta.is_null()) model["rotary_base"] = theta;
  if (!percent.is_null() && percent != 1 && !model.contains("rotary_percent"))
    return NotSupported(
        "config.json: partial_rotary_factor is {}; transformers applies it only to some kinds of rope of "
        "this family, and no table says which",
        percent.dump());
  if (!percent.is_null() && model.contains("rotary_percent")) model["rotary_percent"] = percent;
  if (!scaling.is_null()) model["rope_scaling"] = scaling;
  return OkStatus();
}

void WriteRope(const json& model, const std::map<std::string, std::string>& also, bool keep, json& config) {
  const auto set = [&](const std::string& key, const json& value) {
    for (const auto& [first, second] : also)
      if (first == key && !value.is_null() && !(keep && config.contains(second))) config[second] = value;
    if (!value.is_null() && !(keep && config.contains(key))) config[key] = value;
  };
  const json theta = model.value("rotary_base", json()), percent = model.value("rotary_percent", json());
  const json scaling = model.value("rope_scaling", json());
  json parameters = scaling.is_object() ? scaling : json{{"rope_type", "default"}};
  if (!theta.is_null()) parameters["rope_theta"] = theta;
  if (!percent.is_null()) parameters["partial_rotary_factor"] = percent;
  set("rope_parameters", parameters);
  set("rope_scaling", scaling);
  set("rope_theta", theta);
  set("partial_rotary_factor", percent);
}

}  // namespace cairn
