#include "convert/formats/formats.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "convert/formats/dcp/dcp.h"
#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/deepspeed/deepspeed_files.h"
#include "convert/formats/deepspeed/universal.h"
#include "convert/formats/hugging_face/hugging_face.h"
#include "convert/formats/hugging_face/safetensors.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/formats/torch/torch.h"

namespace cairn {
namespace {

// Every relaxation that was of use is in the history, by name; some readers have said it already.
void RecordLetPass(const OpenOptions& options, ForeignSource& source) {
  if (options.vocab_size > 0)
    source.AddHistory(
        fmt::format("import: {} rows of the vocabulary are tokens (--true-vocab-size)", options.vocab_size));
  for (const std::string& name : *options.let_pass) {
    std::string line = fmt::format("import: {} was left out (--allow)", name);
    const auto says_it = [&](const nlohmann::json& entry) {
      return entry == line || entry == "left out " + name;
    };
    // LeaveOutOptimizer() says why.
    if (name != "optimizer" && std::ranges::none_of(source.manifest().history, says_it))
      source.AddHistory(std::move(line));
  }
}

}  // namespace

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

Result<std::unique_ptr<ForeignSource>> OpenForeign(FileSystem& fs, const std::string& path,
                                                   const OpenOptions& options) {
  std::vector<std::string_view> names;
  for (const Format& format : Formats()) {
    names.push_back(format.name);
    if (options.format.empty() ? !format.matches(fs, path) : format.name != options.format) continue;
    OpenOptions recorded = options;
    recorded.let_pass = std::make_shared<std::set<std::string>>();
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<ForeignSource> source, format.open(fs, path, recorded));
    if (const Result<FileInfo> info = fs.Stat(path); info.ok() && !info->is_directory())
      source->SetName(path);
    RecordLetPass(recorded, *source);
    return source;
  }
  if (!options.format.empty())
    return InvalidArgument("there is no format {}; the formats are {}", options.format,
                           fmt::join(names, ", "));
  return NotFound("{}: neither a Cairn step or run nor a checkpoint of {}; name it with --from", path,
                  fmt::join(names, ", "));
}

}  // namespace cairn
