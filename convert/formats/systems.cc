#include "convert/formats/systems.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "ckpt/base/glob.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/dcp/dcp_index.h"
#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/deepspeed/deepspeed_files.h"
#include "convert/formats/hugging_face/safetensors.h"
#include "convert/formats/hugging_face/weight_files.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/formats/torch/torch.h"

namespace cairn {
namespace {

// Puts every relaxation that was used into the history, by name; some readers have put it there already.
void RecordAllowed(const ReaderOptions& options, ForeignSource& source) {
  if (options.vocab_size > 0)
    source.AddHistory(
        fmt::format("import: {} rows of the vocabulary are tokens (--true-vocab-size)", options.vocab_size));
  for (const std::string& name : options.allowed_names) {
    std::string line = fmt::format("import: {} was left out (--allow)", name);
    const auto says_it = [&](const nlohmann::json& entry) {
      return entry == line || entry == "left out " + name;
    };
    // LeaveOutOptimizer() says why.
    if (name != "optimizer" && std::ranges::none_of(source.manifest().history, says_it))
      source.AddHistory(std::move(line));
  }
}

// Megatron-DeepSpeed writes Megatron's tracker beside DeepSpeed's, but no iterations of Megatron's.
bool IsMegatron(FileSystem& fs, const std::string& path) {
  if (!MatchesMegatronLm(fs, path)) return false;
  if (!MatchesDeepSpeed(fs, path)) return true;
  const auto names = fs.List(path);
  return names.ok() && std::ranges::any_of(*names, [&](const std::string& name) {
           const bool iteration = name.starts_with(kMegatronStep) || name == kMegatronRelease;
           return (iteration || name.starts_with("mp_rank_")) &&
                  MatchesMegatronLm(fs, iteration ? JoinPath(path, name) : path) &&
                  fs.List(JoinPath(path, name)).ok();
         });
}

// Notes files beside released weights that are not read.
void NoteOthers(FileSystem& fs, const std::string& path, std::vector<std::string>& notes) {
  for (const char* name : {"optimizer.pt", "optimizer.bin"})
    if (const std::string file = JoinPath(path, name); fs.Stat(file).ok())
      notes.push_back(
          fmt::format("{}, the optimizer's state, is not read: {} is taken as weights alone", file, path));
  if (fs.Stat(JoinPath(path, kAdapterFile)).ok() &&
      (HasAny(fs, path, kSafetensors) || HasAny(fs, path, kPickles)))
    notes.push_back(
        fmt::format("{} is not read: transformers adds this adapter to the model; merge it first, or give "
                    "the file itself",
                    JoinPath(path, kAdapterFile)));
}

struct Unsupported {
  const char* file;  // glob of a name that only this format has
  const char* what;
  const char* advice;
};

constexpr Unsupported kUnsupported[] = {
    {"shard-*-model-*.safetensors", "torch.distributed.checkpoint in safetensors form",
     "load it with transformers' from_pretrained and save_pretrained it without distributed_checkpoint=True"},
    {"*.gguf", "GGUF, llama.cpp's quantized form", "convert the Hugging Face model that it was made from"},
    {"model_world_size_*_rank_*.pt", "verl's, one file of DTensors per rank",
     "python -m verl.model_merger merge makes a Hugging Face model of it"},
    {"_CHECKPOINT_METADATA", "Orbax, of JAX", "export it to safetensors with the program that wrote it"},
    {"manifest.ocdbt", "Orbax, of JAX", "export it to safetensors with the program that wrote it"},
    {"flax_model.msgpack", "Flax weights",
     "load them with transformers' from_pretrained(from_flax=True) and save_pretrained"},
    {"tf_model.h5", "TensorFlow weights",
     "load them with transformers' from_pretrained(from_tf=True) and save_pretrained"},
};

// Errors: NotSupported naming the format that is not read, and what to do.
Status CheckUnsupported(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok()) return OkStatus();
  std::vector<std::string> names = {path.substr(path.find_last_of('/') + 1)};
  if (info->is_directory()) {
    const auto listed = fs.List(path);
    if (!listed.ok()) return OkStatus();
    names = *listed;
  }
  for (const auto& [file, what, advice] : kUnsupported) {
    const auto found = std::ranges::find_if(names, [&](const auto& name) { return FitsGlob(name, file); });
    if (found != names.end())
      return NotSupported("{}: {} is of a format that is not read: {}; {}", path, *found, what, advice);
  }
  return OkStatus();
}

// The names that `--from` takes.
std::string ReadableNames(std::span<const System> systems) {
  std::vector<std::string_view> names;
  for (const System& system : systems)
    if (system.open) names.push_back(system.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

constexpr std::string_view kMegatronSteps[] = {kMegatronStep};
constexpr std::string_view kTrainerSteps[] = {"checkpoint-"};
constexpr std::string_view kDeepSpeedSteps[] = {kDeepSpeedStep};
constexpr std::string_view kDcpSteps[] = {"checkpoint_", "step_", "step-", "step"};  // accelerate, torchtitan

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
     .release = StripFormat::kNative},
    {.name = "megatron",
     .reads = "a checkpoint of Megatron-LM (mp_rank_* directories) or Megatron-Core (torch_dist)",
     .matches = IsMegatron,
     .open = OpenMegatronLm,
     .training = true,
     .covers = "dcp",
     .writes = "Megatron-LM's torch format with Megatron-Core's names; --zero 1: its distributed optimizer",
     .plan = PlanMegatron,
     .reader = "megatron",
     .steps = {.prefixes = kMegatronSteps, .tracker = kMegatronTracker},
     .sets = kMegatronSets,
     .check_files = CheckMegatronFiles},
    {.name = "torch-dist",
     .writes =
         "Megatron-Core's distributed checkpoint, for any TP and PP; --zero 1: its distributed optimizer",
     .plan = PlanTorchDist,
     .reader = "megatron"},
    {.name = "hf",
     .reads = "a Hugging Face model: config.json with safetensors or pytorch_model.bin",
     .matches = IsHuggingFace,
     .open = OpenHuggingFace,
     .writes = "a Hugging Face model: its names, safetensors, config.json",
     .release = StripFormat::kHuggingFace,
     .steps = {.prefixes = kTrainerSteps,
               .last_file = "trainer_state.json",
               .without_last = "random_states_*"},
     .sets = kTrainerSets,
     .check_files = CheckWeightFiles},
    {.name = "safetensors",
     .reads = "safetensors: canonical names, or those of an unknown model",
     .matches = IsSafetensors,
     .open = OpenSafetensors,
     .writes = "canonical names",
     .release = StripFormat::kSafetensors},
    {.name = "universal",
     .reads = "a universal checkpoint of DeepSpeed",
     .matches = MatchesUniversal,
     .open = OpenUniversal,
     .training = true,
     .covers = "deepspeed",
     .writes = "DeepSpeed's universal checkpoint, for any topology and ZeRO stage",
     .plan = PlanUniversal,
     .reader = "universal",
     .sets = kUniversalSets},
    {.name = "deepspeed",
     .reads = "a checkpoint of DeepSpeed or Megatron-DeepSpeed (pipeline layers, ZeRO-1 to 3)",
     .matches = MatchesDeepSpeed,
     .open = OpenDeepSpeed,
     .training = true,
     .steps = {.prefixes = kDeepSpeedSteps, .tracker = kDeepSpeedTracker},
     .sets = kDeepSpeedSets,
     .check_files = CheckDeepSpeedFiles},
    {.name = "megatron-deepspeed",
     .writes =
         "Megatron-DeepSpeed or DeepSpeed: --zero 1 a pipeline's layer files, 2 and 3 without a pipeline",
     .plan = PlanMegatronDeepSpeed,
     .reader = "deepspeed"},
    {.name = "dcp",
     .reads = "a directory of torch.distributed.checkpoint (FSDP2, DTensor)",
     .matches = MatchesDcp,
     .open = OpenDcp,
     .training = true,
     .writes = "a directory of torch.distributed.checkpoint (FSDP2, DTensor), of canonical names",
     .plan = PlanDcp,
     .reader = "dcp",
     .steps = {.prefixes = kDcpSteps, .last_file = kDcpMetadata, .last_after = "*.distcp"},
     .check_files = CheckDcpFiles},
    {.name = "torch",
     .reads = "a file of torch.save, every tensor under its own name",
     .matches = MatchesTorch,
     .open = OpenTorch},
};

}  // namespace

std::span<const System> Systems() { return kSystems; }

const System* FindSystem(std::string_view name) {
  const auto found = std::ranges::find(kSystems, name, &System::name);
  return found == std::end(kSystems) ? nullptr : found;
}

std::optional<NamedStep> ParseForeignStep(std::string_view name, std::span<const System> systems) {
  for (const System& system : systems)
    for (const std::string_view prefix : system.steps.prefixes) {
      if (!name.starts_with(prefix)) continue;
      const std::string_view digits = name.substr(prefix.size());
      NamedStep named{&system, -1};
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), named.step);
      if (error == std::errc() && end == digits.data() + digits.size() && named.step >= 0) return named;
    }
  return std::nullopt;
}

Result<Recognised> Recognise(FileSystem& fs, const std::string& path, std::span<const System> systems) {
  const System *weights = nullptr, *training = nullptr;
  for (const System& system : systems) {
    if (!system.matches) continue;
    const bool covered = training != nullptr && training->covers == system.name;
    const System*& found = system.training ? training : weights;
    if ((found != nullptr && !system.training) || covered || !system.matches(fs, path)) continue;
    if (found != nullptr)
      return InvalidArgument("{} holds two trainings; --from {} reads the one, --from {} the other", path,
                             found->name, system.name);
    found = &system;
  }
  if (training != nullptr) {
    Recognised recognised{training, {}};
    if (weights != nullptr)
      recognised.notes.push_back(fmt::format(
          "{} holds a training ({}) and weights for use ({}); the training is read, and --from {} reads the "
          "weights alone{}",
          path, training->name, weights->name, weights->name,
          weights->name == "hf" ? fmt::format("; --config {} reads the training as that model", path) : ""));
    return recognised;
  }
  if (weights != nullptr) {
    Recognised recognised{weights, {}};
    NoteOthers(fs, path, recognised.notes);
    return recognised;
  }
  CAIRN_RETURN_IF_ERROR(CheckUnsupported(fs, path));
  return NotFound("{}: neither a Cairn step or run nor a checkpoint of {}; name it with --from", path,
                  ReadableNames(systems));
}

Result<std::unique_ptr<ForeignSource>> OpenForeign(FileSystem& fs, const std::string& path,
                                                   const OpenOptions& options,
                                                   std::span<const System> systems) {
  const auto named = std::ranges::find(systems, options.format, &System::name);
  const System* system = named == systems.end() ? nullptr : &*named;
  if (options.format.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const Recognised recognised, Recognise(fs, path, systems));
    system = recognised.system;
  } else if (!system || !system->open) {
    return InvalidArgument("format {} is unknown; the formats are {}", options.format,
                           ReadableNames(systems));
  }
  ReaderOptions used{options, {}};
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<ForeignSource> source, system->open(fs, path, used));
  if (const Result<FileInfo> info = fs.Stat(path); info.ok() && !info->is_directory()) source->SetName(path);
  RecordAllowed(used, *source);
  return source;
}

}  // namespace cairn
