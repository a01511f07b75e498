// Names are taken apart from the left, piece by piece; a name that does not fit in full is not one of
// DeepSpeed's and is ignored. `latest` is followed only if the path itself has no model states, and
// only to a plain name. Mixtures of experts are refused here, since their files would be ignored
// silently.

#include "convert/formats/deepspeed/deepspeed_files.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "ckpt/model/layout.h"
#include "convert/torch/torch_file.h"

namespace cairn {
namespace {

constexpr std::string_view kModel = "model_states.pt";
constexpr std::string_view kOptimizer = "optim_states.pt";
constexpr int64_t kMostRanks = 1 << 20;

// Takes `word` off the front of `name`.
bool Eat(std::string_view& name, std::string_view word) {
  if (!name.starts_with(word)) return false;
  name.remove_prefix(word.size());
  return true;
}

std::optional<int> EatNumber(std::string_view& name) {
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0 || end == name.data()) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  return number;
}

// layer_03-model_01-model_states.pt, layer_03-model_states.pt
void AddLayer(const std::string& file, DeepSpeedFiles& files) {
  std::string_view name = file;
  if (!Eat(name, "layer_")) return;
  const auto layer = EatNumber(name);
  std::optional<int> rank = 0;
  if (Eat(name, "-model_") && name != "states.pt") {
    rank = EatNumber(name);
    if (!Eat(name, "-")) return;
  } else if (name == "states.pt") {
    name = kModel;
  }
  if (layer && rank && name == kModel) files.layers[{*layer, *rank}] = file;
}

// mp_rank_01_model_states.pt
void AddModel(const std::string& file, DeepSpeedFiles& files) {
  std::string_view name = file;
  if (!Eat(name, "mp_rank_")) return;
  const auto rank = EatNumber(name);
  if (rank && Eat(name, "_") && name == kModel) files.models[*rank] = file;
}

// bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt; before 2021 without the underscore behind the ranks
void AddZero(const std::string& file, DeepSpeedFiles& files) {
  std::string_view name = file;
  (void)(Eat(name, "bf16_") || Eat(name, "fp16_"));
  if (!Eat(name, "zero_pp_rank_")) return;
  const auto data = EatNumber(name);
  if (!data || !Eat(name, "_mp_rank_")) return;
  const auto model = EatNumber(name);
  (void)Eat(name, "_");
  if (!model) return;
  if (name == kOptimizer) files.optimizers[{*model, *data}] = file;
  if (name == kModel) files.zero3_models[{*model, *data}] = file;
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

}  // namespace

bool MatchesDeepSpeed(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok() || !info->is_directory()) return false;
  if (IsTagDirectory(fs, path)) return true;
  const auto names = fs.List(path);
  return names.ok() && std::ranges::find(*names, kDeepSpeedTracker) != names->end() &&
         std::ranges::any_of(*names, [](const std::string& n) { return n.starts_with(kDeepSpeedStep); });
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
      return NotFound("{} names {}, which is not there or empty; name another global_step directory",
                      JoinPath(path, kDeepSpeedTracker),
                      files.directory.substr(files.directory.rfind('/') + 1));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(files.directory));
  for (const std::string& name : names) {
    if (name.find("expert_") != std::string::npos || name.starts_with("expp_rank_"))
      return NotSupported("{}: {} belongs to a mixture of experts, which cannot be read yet", files.directory,
                          name);
    AddLayer(name, files);
    AddModel(name, files);
    AddZero(name, files);
  }
  return files;
}

Status CheckDeepSpeedFiles(FileSystem& fs, const std::string& directory,
                           const std::vector<std::string>& names) {
  const bool sharded =
      std::ranges::any_of(names, [](const std::string& name) { return name.ends_with("_optim_states.pt"); });
  if (!HasModelStates(names))
    return sharded ? NotFound("{}: is missing; the optimizer's states are there",
                              JoinPath(directory, "mp_rank_00_model_states.pt"))
                   : OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const DeepSpeedFiles files, FindDeepSpeedFiles(fs, directory));
  const bool zero3 = files.models.empty();
  const bool universal = fs.Stat(JoinPath(directory, kUniversalFolder)).ok();  // no rank has files of its own
  if (universal || (zero3 && files.zero3_models.empty())) return OkStatus();
  const std::string& first = zero3 ? files.zero3_models.begin()->second : files.models.begin()->second;
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs, directory, first));
  const PyValue* config = Find(file.root(), "ds_config");
  const PyValue* zero = config ? Find(*config, "zero_optimization") : nullptr;
  const int64_t stage = zero ? AsInt(Find(*zero, "stage")).value_or(0) : 0;
  if (stage > 0 && !sharded)
    return NotFound("{}: are missing; the training has ZeRO stage {}",
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
