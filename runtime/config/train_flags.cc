// The one table of flags. Help of the command, TOML keys and parsing all follow from it. The field's name
// gives the flag's, so that no flag fills another's field.
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/config/train_config.h"

namespace cairn {
namespace {

std::vector<Flag> MakeFlags() {
  std::vector<Flag> flags;
  std::string_view group;
#define GROUP(name) group = name;
#define FLAG(type, field, initial, help, ...) \
  flags.push_back({group, #field, help, &TrainConfig::field __VA_OPT__(, ) __VA_ARGS__});
#include "runtime/config/train_flags.def"
#undef FLAG
#undef GROUP
  for (Flag& flag : flags) std::ranges::replace(flag.name, '_', '-');
  return flags;
}

}  // namespace

std::span<const Flag> TrainFlags() {
  static const std::vector<Flag> kFlags = MakeFlags();
  return kFlags;
}

const Flag* FindTrainFlag(std::string_view name) {
  const auto flag = std::ranges::find(TrainFlags(), name, &Flag::name);
  return flag == TrainFlags().end() ? nullptr : &*flag;
}

std::string FlagText(const Flag& flag, const TrainConfig& config) {
  const auto text = [&](auto field) -> std::string {
    if constexpr (std::is_same_v<decltype(field), bool TrainConfig::*>)
      return config.*field ? "" : " false";
    else
      return fmt::format(" {}", config.*field);
  };
  return fmt::format("--{}{}", flag.name, std::visit(text, flag.field));
}

}  // namespace cairn
