#include "convert/foreign/dict_entries.h"

#include <algorithm>

#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr std::string_view kModels[] = {"model", "module", "state_dict", "model_state_dict", "weights"};
constexpr std::string_view kProgress[] = {"iteration", "step", "global_step",      "global_steps",
                                          "epoch",     "lr",   "consumed_samples", "consumed_tokens"};

constexpr std::string_view kTrainingState[] = {"args",
                                               "random_rng_state",
                                               "np_rng_state",
                                               "torch_rng_state",
                                               "cuda_rng_state",
                                               "rng_state",
                                               "rng_tracker_states",
                                               "lr_scheduler",
                                               "data_sampler",
                                               "opt_param_scheduler",
                                               "random_ltd",
                                               "rerun_state_machine",
                                               "ds_config",
                                               "loss_scaler",
                                               "train_state",
                                               "scheduler",
                                               "lr_schedulers",
                                               "schedulers",
                                               "dataloader",
                                               "sampler",
                                               "rng_states",
                                               "rng",
                                               "trainer",
                                               "progress"};

bool IsAmong(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool IsModel(const DictEntry& entry) {
  return !entry.is_tensor && (entry.is_trained || IsAmong(kModels, entry.key));
}

// A key that only a module's own state dict has.
bool IsParameter(const DictEntry& entry) {
  return entry.is_tensor && (entry.key.find('.') != std::string::npos || IsCalledParameter(entry.key));
}

}  // namespace

std::vector<bool> AreOfTraining(std::span<const DictEntry> entries) {
  const bool beside_model = std::ranges::any_of(entries, IsModel);
  const bool has_parameter = std::ranges::any_of(entries, IsParameter);
  // Whether it is a module's own state dict, into which a training may have put more.
  const auto is_tensor = [](const DictEntry& entry) { return entry.is_tensor && entry.rank > 0; };
  const bool own = has_parameter || (!beside_model && std::ranges::any_of(entries, is_tensor));
  std::vector<bool> training;
  for (const DictEntry& entry : entries) {
    const bool number = entry.rank == 0 && entries.size() > 1;
    const bool small = entry.rank < 2 && !entry.has_parameter && !IsModel(entry);
    const bool beside = own && entry.is_tensor ? number && IsAmong(kProgress, entry.key)
                                               : number || (small && (beside_model || has_parameter));
    training.push_back((IsTrainingName(entry.key) || beside) && !entry.is_trained);
  }
  return training;
}

bool IsTrainingName(std::string_view name) { return IsAmong(kTrainingState, name); }

std::span<const std::string_view> ProgressNames() { return kProgress; }

}  // namespace cairn
