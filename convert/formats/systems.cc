#include "convert/formats/systems.h"

#include <algorithm>

#include "convert/formats/dcp/dcp.h"
#include "convert/formats/dcp/dcp_index.h"
#include "convert/formats/dcp/rank_files.h"
#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/deepspeed/deepspeed_files.h"
#include "convert/formats/deepspeed/pipeline_layers.h"
#include "convert/formats/hugging_face/safetensors.h"
#include "convert/formats/hugging_face/weight_files.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/formats/torch/torch.h"

namespace cairn {
namespace {

// By tensor, pipeline and expert parallel rank.
constexpr std::string_view kMegatronSets[] = {"mp_rank_#/*.pt", "mp_rank_#_#/*.pt", "mp_rank_#_#_#/*.pt"};
constexpr std::string_view kTrainerSets[] = {"rng_state_#.pth"};
constexpr std::string_view kUniversalSets[] = {"zero/*/*.pt"};
constexpr std::string_view kDeepSpeedSets[] = {"layer_*-model_#-model_states.pt", "mp_rank_#_model_states.pt",
                                               "*zero_pp_rank_#_mp_rank_#_*_states.pt",
                                               "zero_pp_rank_#_mp_rank_#_*_states.pt"};

constexpr System kSystems[] = {
    {.name = "native",
     .reads = "a step, RUN@STEP, a run directory, or STORE:RUN@STEP",
     .writes = "a step of Cairn",
     .release = [](const auto&, Dtype, const auto& parameters) -> Result<ForeignModel> {
       return CanonicalModel(parameters);
     }},
    {.name = "megatron",
     .reads = "a checkpoint of Megatron-LM (mp_rank_* directories) or Megatron-Core (torch_dist)",
     .matches = MatchesMegatronLm,
     .open = OpenMegatronLm,
     .training = true,
     .covers = "dcp",
     .writes = "Megatron-LM's torch format with Megatron-Core's names; --zero 1: its distributed optimizer",
     .plan = PlanMegatron,
     .most_zero = 1,
     .reader = "megatron",
     .sets = kMegatronSets,
     .check_files = CheckMegatronFiles},
    {.name = "torch-dist",
     .writes =
         "Megatron-Core's distributed checkpoint, for any TP and PP; --zero 1: its distributed optimizer",
     .plan = PlanTorchDist,
     .experts = true,
     .most_zero = 1,
     .reader = "megatron"},
    {.name = "hf",
     .reads = "a Hugging Face model: config.json with safetensors or pytorch_model.bin",
     .matches = IsHuggingFace,
     .open = OpenHuggingFace,
     .names = NamesOfHuggingFace,
     .writes = "a Hugging Face model: its names, safetensors, config.json",
     .release = HuggingFaceModel,
     .has_tokenizer = true,
     .reader = "hf",
     .sets = kTrainerSets,
     .check_files = CheckWeightFiles},
    {.name = "safetensors",
     .reads = "safetensors: canonical names, or those of an unknown model",
     .matches = IsSafetensors,
     .open = OpenSafetensors,
     .writes = "canonical names",
     .release = SafetensorsRelease,
     .every_name = true,
     .reader = "safetensors"},
    {.name = "universal",
     .reads = "a universal checkpoint of DeepSpeed",
     .matches = MatchesUniversal,
     .open = OpenUniversal,
     .training = true,
     .covers = "deepspeed",
     .writes = "DeepSpeed's universal checkpoint, for any topology and ZeRO stage; see --names",
     .plan = PlanUniversal,
     .any_names = true,
     .most_zero_in_pipeline = 1,
     .reader = "universal",
     .sets = kUniversalSets},
    {.name = "gpt-neox",
     .reads = "GPT-NeoX's layer files without tensor parallelism, every tensor under its own name",
     .note = "it was written by GPT-NeoX: its tensors keep the names that they have in its layer files",
     .matches = MatchesGptNeox,
     .open = OpenDeepSpeed,
     .training = true,
     .covers = "deepspeed"},
    {.name = "deepspeed",
     .reads = "a checkpoint of DeepSpeed or Megatron-DeepSpeed (pipeline layers, ZeRO-1 to 3)",
     .matches = MatchesDeepSpeed,
     .open = OpenDeepSpeed,
     .training = true,
     .step_of = DeepSpeedStepOf,
     .sets = kDeepSpeedSets,
     .check_files = CheckDeepSpeedFiles},
    {.name = "megatron-deepspeed",
     .writes =
         "Megatron-DeepSpeed or DeepSpeed: --zero 1 a pipeline's layer files, 2 and 3 without a pipeline",
     .plan = PlanMegatronDeepSpeed,
     .most_zero_in_pipeline = 1,
     .reader = "deepspeed"},
    {.name = "dcp",
     .reads = "a directory of torch.distributed.checkpoint (FSDP2, DTensor), also in safetensors",
     .matches = MatchesDcp,
     .open = OpenDcp,
     .names = NamesOfDcp,
     .training = true,
     .writes = "a directory of torch.distributed.checkpoint (FSDP2, DTensor); see --names",
     .plan = PlanDcp,
     .experts = true,
     .any_names = true,
     .reader = "dcp",
     .check_files = CheckDcpFiles},
    {.name = "rank-files",
     .reads = "files of torch.save by rank with DTensors (verl, SkyRL, torch_checkpointing)",
     .matches = MatchesRankFiles,
     .open = OpenRankFiles,
     .names = NamesOfRankFiles,
     .own_names = true,
     .training = true,
     .check_files = CheckRankFiles},
    {.name = "torch",
     .reads = "a file of torch.save, every tensor under its own name",
     .matches = MatchesTorch,
     .open = OpenTorch,
     .own_names = true},
};

}  // namespace

std::span<const System> Systems() { return kSystems; }

const System* FindSystem(std::string_view name) {
  const auto found = std::ranges::find(kSystems, name, &System::name);
  return found == std::end(kSystems) ? nullptr : found;
}

Status AddLayouts(FileSystem& fs, const std::string& directory) {
  constexpr uint64_t kMaxBytes = 1 << 20;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  std::vector<TrainerLayout> added;
  for (const std::string& name : names) {
    if (!name.ends_with(".json")) continue;
    const std::string path = JoinPath(directory, name);
    CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, kMaxBytes));
    CAIRN_ASSIGN_OR_RETURN(std::vector<TrainerLayout> layouts, ReadLayouts(path, text));
    for (TrainerLayout& layout : layouts) {
      if (!layout.format.empty() && !FindSystem(layout.format))
        return InvalidArgument("{}: {}: format is {}, which --from does not take", path, layout.program,
                               layout.format);
      added.push_back(std::move(layout));
    }
  }
  if (added.empty()) return NotFound("{}: it has no *.json files with layouts", directory);
  PutFirst(std::move(added));
  return OkStatus();
}

std::optional<NamedStep> ParseForeignStep(std::string_view name, std::span<const TrainerLayout> layouts) {
  for (const TrainerLayout& layout : layouts)
    if (const auto step = layout.StepOf(name)) return NamedStep{&layout, *step, /*named=*/true};
  return std::nullopt;
}

}  // namespace cairn
