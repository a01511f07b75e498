#include "convert/targets/targets.h"

#include <algorithm>

#include "convert/targets/dcp.h"

namespace cairn {

std::span<const TargetFormat> TargetFormats() {
  static constexpr TargetFormat kFormats[] = {
      {"dcp", "dcp", "a directory of torch.distributed.checkpoint", PlanDcp},
  };
  return kFormats;
}

const TargetFormat* FindTargetFormat(std::string_view name) {
  const auto formats = TargetFormats();
  const auto found = std::ranges::find(formats, name, &TargetFormat::name);
  return found == formats.end() ? nullptr : &*found;
}

}  // namespace cairn
