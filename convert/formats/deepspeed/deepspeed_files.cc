// A name that fits none of the patterns in full is not one of DeepSpeed's and is ignored. `latest` is
// followed only if the path itself has no model states, and only to a plain name. A file of experts that fits
// no pattern is refused here, since it would be ignored silently.

#include "convert/formats/deepspeed/deepspeed_files.h"

#include <algorithm>

#include "ckpt/model/layout.h"
#include "convert/foreign/file_sets.h"
#include "convert/formats/deepspeed/mixtures.h"
#include "convert/torch/torch_file.h"

namespace cairn {
namespace {

constexpr int64_t kMostRanks = 1 << 20;

// The numbers that stand for the marks of `pattern`; empty: the name does not fit.
std::vector<int> NumbersIn(std::string_view pattern, std::string_view name) {
  std::vector<std::string> texts;
  std::vector<int> numbers;
  if (FitsPattern(pattern, name, texts))
    for (const std::string& text : texts) numbers.push_back(std::stoi(text));
  return numbers;
}

void AddFile(const std::string& file, DeepSpeedFiles& files) {
  std::string_view name = file;
  if (const auto n = NumbersIn("layer_#-model_#-model_states.pt", name); !n.empty())
    files.layers[{n[0], n[1]}] = file;
  if (const auto n = NumbersIn("layer_#-model_states.pt", name); !n.empty()) files.layers[{n[0], 0}] = file;
  if (const auto n = NumbersIn("mp_rank_#_model_states.pt", name); !n.empty()) files.models[n[0]] = file;
  if (const auto n = NumbersIn("layer_#_expert_#_mp_rank_00_model_states.pt", name); !n.empty())
    files.experts[{n[0], n[1]}] = file;
  if (const auto n = NumbersIn("expp_rank_#_mp_rank_00_optim_states.pt", name); !n.empty())
    files.expert_optimizers[n[0]] = file;
  if (name.starts_with("bf16_") || name.starts_with("fp16_")) name.remove_prefix(5);
  if (const auto n = NumbersIn("zero_pp_rank_#_mp_rank_#_model_states.pt", name); !n.empty())
    files.zero3_models[{n[1], n[0]}] = file;
  for (const char* pattern : {"zero_pp_rank_#_mp_rank_#_optim_states.pt",
                              "zero_pp_rank_#_mp_rank_#optim_states.pt"})  // before 2021
    if (const auto n = NumbersIn(pattern, name); !n.empty()) files.optimizers[{n[1], n[0]}] = file;
}

bool HasModelStates(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return name.ends_with("_model_states.pt") || name.ends_with("-model_states.pt");
  });
}

bool IsTagDirectory(FileSystem& fs, const std::string& path) {
  const auto names = fs.List(path);
  return names.ok() && HasModelStates(*names);
}

// The model states of the first rank; nullptr: there are none.
const std::string* FirstModelStates(const DeepSpeedFiles& files) {
  if (!files.models.empty()) return &files.models.begin()->second;
  return files.zero3_models.empty() ? nullptr : &files.zero3_models.begin()->second;
}

}  // namespace

bool MatchesDeepSpeed(FileSystem& fs, const std::string& path) {
  const auto names = fs.List(path);
  if (!names.ok()) return false;
  if (HasModelStates(*names)) return true;
  if (std::ranges::find(*names, kDeepSpeedTracker) == names->end()) return false;
  const auto tag = NamedDirectory(fs, path, kDeepSpeedTracker);
  return (tag.ok() && IsTagDirectory(fs, *tag)) ||
         std::ranges::any_of(*names, [](const auto& name) { return name.starts_with(kDeepSpeedStep); });
}

std::optional<int64_t> DeepSpeedStepOf(FileSystem& fs, const std::string& directory) {
  constexpr const char* kLightningTag = "checkpoint";
  for (const std::string& tag : {directory, JoinPath(directory, kLightningTag)}) {
    if (!IsTagDirectory(fs, tag) || fs.Stat(JoinPath(tag, kUniversalFolder)).ok()) continue;
    const auto files = FindDeepSpeedFiles(fs, tag);
    const std::string* const first = files.ok() ? FirstModelStates(*files) : nullptr;
    if (!first) return std::nullopt;
    const auto states = TorchFile::Open(fs, tag, *first);
    const auto step = states.ok() ? AsInt(Find(states->root(), "global_steps")) : std::nullopt;
    return step && *step >= 0 ? step : std::nullopt;
  }
  return std::nullopt;
}

Result<std::string> NamedDirectory(FileSystem& fs, const std::string& path, std::string_view pointer) {
  const std::string file = JoinPath(path, pointer);
  CAIRN_ASSIGN_OR_RETURN(std::string tag, ReadSmallFile(fs, file, 4096));
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) tag.pop_back();
  if (!IsPlainFileName(tag)) return Corrupt("{}: {:.100} is not the name of a directory", file, tag);
  return JoinPath(path, tag);
}

Result<DeepSpeedFiles> FindDeepSpeedFiles(FileSystem& fs, const std::string& path) {
  DeepSpeedFiles files{.directory = path, .layers = {}, .models = {}, .optimizers = {}, .zero3_models = {}};
  if (!IsTagDirectory(fs, path)) {
    CAIRN_ASSIGN_OR_RETURN(files.directory, NamedDirectory(fs, path, kDeepSpeedTracker));
    if (!IsTagDirectory(fs, files.directory))
      return NotFound("{} names {}, which does not exist or is empty; name another directory",
                      JoinPath(path, kDeepSpeedTracker),
                      files.directory.substr(files.directory.rfind('/') + 1));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(files.directory));
  for (const std::string& name : names) {
    const size_t known = files.experts.size() + files.expert_optimizers.size();
    AddFile(name, files);
    if ((name.find("expert_") != std::string::npos || name.starts_with("expp_rank_")) &&
        files.experts.size() + files.expert_optimizers.size() == known)
      return NotSupported(
          "{}: {} is of a mixture of experts over tensor parallel ranks, or of a form before 2021, which "
          "cannot be read yet",
          files.directory, name);
  }
  return files;
}

Status CheckDeepSpeedFiles(FileSystem& fs, const std::string& directory,
                           const std::vector<std::string>& names) {
  const bool sharded = std::ranges::any_of(names, [](const std::string& name) {
    return name.ends_with("_optim_states.pt") && !name.starts_with("expp_rank_");
  });
  if (!HasModelStates(names))
    return sharded ? NotFound("{}: is missing, but the optimizer's states exist",
                              JoinPath(directory, "mp_rank_00_model_states.pt"))
                   : OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const DeepSpeedFiles files, FindDeepSpeedFiles(fs, directory));
  const bool zero3 = files.models.empty();
  const bool universal = fs.Stat(JoinPath(directory, kUniversalFolder)).ok();  // no rank has files of its own
  const std::string* const first = FirstModelStates(files);
  if (universal || !first) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs, directory, *first));
  CAIRN_RETURN_IF_ERROR(CheckExpertFiles(files, file.root()));
  const PyValue* config = Find(file.root(), "ds_config");
  const PyValue* zero = config ? Find(*config, "zero_optimization") : nullptr;
  const int64_t stage = zero ? AsInt(Find(*zero, "stage")).value_or(0) : 0;
  if (stage > 0 && !sharded)
    return NotFound("{}: these files are missing; the training has ZeRO stage {}",
                    JoinPath(directory, "zero_pp_rank_*_optim_states.pt"), stage);
  const auto last = [&](const char* key) {
    const int64_t count = AsInt(Find(file.root(), key)).value_or(1);
    return static_cast<int>(std::clamp<int64_t>(count, 1, kMostRanks)) - 1;
  };
  const std::pair<int, int> ranks{last("mp_world_size"), last("dp_world_size")};
  if ((sharded && !files.optimizers.contains(ranks)) || (zero3 && !files.zero3_models.contains(ranks)))
    return NotFound("{}: the files of data parallel rank {} and model parallel rank {} are missing",
                    directory, ranks.second, ranks.first);
  return OkStatus();
}

}  // namespace cairn
