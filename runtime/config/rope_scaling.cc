#include "runtime/config/rope_scaling.h"

#include <map>

#include "ckpt/base/json_facts.h"

namespace cairn {
namespace {

using nlohmann::json;
using Kind = RopeScaling::Kind;

}  // namespace

Result<RopeScaling> ReadRopeScaling(const json& scaling, double positions, int64_t frequencies) {
  static const std::map<std::string, Kind> kKinds = {
      {"default", Kind::kNone}, {"linear", Kind::kLinear},     {"dynamic", Kind::kDynamic},
      {"yarn", Kind::kYarn},    {"longrope", Kind::kLongRope}, {"llama3", Kind::kLlama3}};
  RopeScaling read;
  if (scaling.is_null()) return read;
  if (!scaling.is_object())
    return InvalidArgument("rope_scaling is {}; it must be an object", scaling.dump());
  const json name = scaling.value("rope_type", json());
  const auto kind = kKinds.find(name.is_string() ? name.get<std::string>() : "");
  if (kind == kKinds.end())
    return NotSupported("rope_scaling is of kind {}; it must be linear, dynamic, yarn, longrope or llama3",
                        name.dump());
  read.kind = kind->second;
  JsonFacts of("rope_scaling: ", scaling);
  (void)of.Text("rope_type");
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
  CAIRN_RETURN_IF_ERROR(of.NoOthers(name));
  return read;
}

}  // namespace cairn
