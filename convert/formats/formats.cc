#include "convert/formats/formats.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>

#include "convert/formats/dcp.h"
#include "convert/formats/deepspeed.h"
#include "convert/formats/deepspeed_files.h"
#include "convert/formats/hugging_face.h"
#include "convert/formats/megatron_lm.h"
#include "convert/formats/safetensors.h"
#include "convert/formats/torch.h"
#include "convert/formats/universal.h"

namespace cairn {

Status LeaveOutOptimizer(const OpenOptions& options, Manifest& manifest, const Status& why) {
  if (!IsAllowed(options, "optimizer"))
    return {why.kind(),
            why.message() + "; --allow optimizer takes the weights without the optimizer's state"};
  manifest.history.push_back("the optimizer's state was left out: " + why.message());
  return OkStatus();
}

bool IsAllowed(const OpenOptions& options, const std::string& name) {
  return std::ranges::any_of(
      options.allow, [&](const std::string& glob) { return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

std::span<const Format> Formats() {
  static constexpr Format kFormats[] = {
      {"megatron", "a checkpoint of Megatron-LM (mp_rank_* directories) or Megatron-Core (torch_dist)",
       MatchesMegatronLm, OpenMegatronLm},
      {"hf", "a Hugging Face model: config.json with safetensors or pytorch_model.bin", IsHuggingFace,
       OpenHuggingFace},
      {"safetensors", "safetensors: canonical names, or those of an unknown model", IsSafetensors,
       OpenSafetensors},
      {"universal", "a universal checkpoint of DeepSpeed", MatchesUniversal, OpenUniversal},
      {"deepspeed", "a checkpoint of DeepSpeed or Megatron-DeepSpeed (pipeline layers, ZeRO-1 to 3)",
       MatchesDeepSpeed, OpenDeepSpeed},
      {"dcp", "a directory of torch.distributed.checkpoint (FSDP2, DTensor)", MatchesDcp, OpenDcp},
      {"torch", "a file of torch.save, every tensor under its own name", MatchesTorch, OpenTorch},
  };
  return kFormats;
}

Result<std::unique_ptr<CheckpointSource>> OpenForeign(FileSystem& fs, const std::string& path,
                                                      const OpenOptions& options) {
  std::vector<std::string_view> names;
  for (const Format& format : Formats()) {
    names.push_back(format.name);
    if (options.format.empty() ? format.matches(fs, path) : format.name == options.format)
      return format.open(fs, path, options);
  }
  if (!options.format.empty())
    return NotFound("there is no format {}; there are {}", options.format, fmt::join(names, ", "));
  return NotFound("{}: neither a Cairn step or run nor a checkpoint of {}; name it with --from", path,
                  fmt::join(names, ", "));
}

}  // namespace cairn
