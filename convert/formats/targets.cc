#include "convert/formats/targets.h"

#include <algorithm>

#include "convert/formats/dcp/dcp_writer.h"
#include "convert/formats/deepspeed/deepspeed_writer.h"
#include "convert/formats/megatron/megatron_writer.h"
#include "convert/formats/megatron/torch_dist_writer.h"

namespace cairn {

std::span<const TargetFormat> TargetFormats() {
  static constexpr TargetFormat kFormats[] = {
      {"dcp", "dcp", "a directory of torch.distributed.checkpoint (FSDP2, DTensor), of canonical names",
       PlanDcp},
      {"megatron-deepspeed", "deepspeed",
       "Megatron-DeepSpeed or DeepSpeed: --zero 1 a pipeline's layer files, 2 and 3 without a pipeline",
       PlanMegatronDeepSpeed},
      {"megatron", "megatron",
       "Megatron-LM's torch format with Megatron-Core's names; --zero 1: its distributed optimizer",
       PlanMegatron},
      {"torch-dist", "megatron",
       "Megatron-Core's distributed checkpoint, for any TP and PP; --zero 1: its distributed optimizer",
       PlanTorchDist},
      {"universal", "universal", "DeepSpeed's universal checkpoint, for any topology and ZeRO stage",
       PlanUniversal},
  };
  return kFormats;
}

const TargetFormat* FindTargetFormat(std::string_view name) {
  const auto formats = TargetFormats();
  const auto found = std::ranges::find(formats, name, &TargetFormat::name);
  return found == formats.end() ? nullptr : &*found;
}

}  // namespace cairn
