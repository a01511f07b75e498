#include "convert/formats/formats.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "convert/formats/dcp/dcp.h"
#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/deepspeed/deepspeed_files.h"
#include "convert/formats/deepspeed/universal.h"
#include "convert/formats/hugging_face/hugging_face.h"
#include "convert/formats/hugging_face/safetensors.h"
#include "convert/formats/hugging_face/weight_files.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/formats/torch/torch.h"
#include "convert/formats/unsupported.h"

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

// Megatron-DeepSpeed writes Megatron's tracker beside DeepSpeed's, and no iterations of Megatron's.
bool IsMegatron(FileSystem& fs, const std::string& path) {
  if (!MatchesMegatronLm(fs, path)) return false;
  if (!MatchesDeepSpeed(fs, path)) return true;
  const auto names = fs.List(path);
  return names.ok() && std::ranges::any_of(*names, [&](const std::string& name) {
           const bool iteration = name.starts_with("iter_") || name == "release";
           return (iteration || name.starts_with("mp_rank_")) &&
                  MatchesMegatronLm(fs, iteration ? JoinPath(path, name) : path) &&
                  fs.List(JoinPath(path, name)).ok();
         });
}

// What lies beside weights for use.
void NoteOthers(FileSystem& fs, const std::string& path, std::vector<std::string>& notes) {
  for (const char* name : {"optimizer.pt", "optimizer.bin"})
    if (const std::string file = JoinPath(path, name); fs.Stat(file).ok())
      notes.push_back(
          fmt::format("{}, the optimizer's state, is not read: {} is taken as weights alone", file, path));
  constexpr const char* kModels[] = {kSafetensorsFile, kSafetensorsIndex, kPickleFile, kPickleIndex};
  const auto is_there = [&](const char* name) { return fs.Stat(JoinPath(path, name)).ok(); };
  if (is_there(kAdapterFile) && std::ranges::any_of(kModels, is_there))
    notes.push_back(
        fmt::format("{} is not read: transformers adds this adapter to the model; merge it first, or give "
                    "the file itself",
                    JoinPath(path, kAdapterFile)));
}

std::vector<std::string_view> FormatNames() {
  std::vector<std::string_view> names;
  for (const Format& format : Formats()) names.push_back(format.name);
  return names;
}

}  // namespace

std::span<const Format> Formats() {
  static constexpr Format kFormats[] = {
      {"megatron", "a checkpoint of Megatron-LM (mp_rank_* directories) or Megatron-Core (torch_dist)",
       IsMegatron, OpenMegatronLm, true, "dcp"},
      {"hf", "a Hugging Face model: config.json with safetensors or pytorch_model.bin", IsHuggingFace,
       OpenHuggingFace},
      {"safetensors", "safetensors: canonical names, or those of an unknown model", IsSafetensors,
       OpenSafetensors},
      {"universal", "a universal checkpoint of DeepSpeed", MatchesUniversal, OpenUniversal, true,
       "deepspeed"},
      {"deepspeed", "a checkpoint of DeepSpeed or Megatron-DeepSpeed (pipeline layers, ZeRO-1 to 3)",
       MatchesDeepSpeed, OpenDeepSpeed, true},
      {"dcp", "a directory of torch.distributed.checkpoint (FSDP2, DTensor)", MatchesDcp, OpenDcp, true},
      {"torch", "a file of torch.save, every tensor under its own name", MatchesTorch, OpenTorch},
  };
  return kFormats;
}

Result<Recognised> Recognise(FileSystem& fs, const std::string& path) {
  const Format *weights = nullptr, *training = nullptr;
  for (const Format& format : Formats()) {
    const bool covered = training != nullptr && training->covers == format.name;
    const Format*& found = format.training ? training : weights;
    if ((found != nullptr && !format.training) || covered || !format.matches(fs, path)) continue;
    if (found != nullptr)
      return InvalidArgument("{} holds two trainings; --from {} reads the one, --from {} the other", path,
                             found->name, format.name);
    found = &format;
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
                  fmt::join(FormatNames(), ", "));
}

Result<std::unique_ptr<ForeignSource>> OpenForeign(FileSystem& fs, const std::string& path,
                                                   const OpenOptions& options) {
  const Format* format = nullptr;
  if (options.format.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const Recognised recognised, Recognise(fs, path));
    format = recognised.format;
  } else {
    const auto found = std::ranges::find(Formats(), options.format, &Format::name);
    if (found == Formats().end())
      return InvalidArgument("there is no format {}; the formats are {}", options.format,
                             fmt::join(FormatNames(), ", "));
    format = &*found;
  }
  OpenOptions recorded = options;
  recorded.let_pass = std::make_shared<std::set<std::string>>();
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<ForeignSource> source, format->open(fs, path, recorded));
  if (const Result<FileInfo> info = fs.Stat(path); info.ok() && !info->is_directory()) source->SetName(path);
  RecordLetPass(recorded, *source);
  return source;
}

}  // namespace cairn
