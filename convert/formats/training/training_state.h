// The progress of a training, by the names that other systems use, and its optimizer's groups of parameters
// as a target must write them.
//
// A source says its groups in its manifest's state (FORMAT.md, `param_groups`). A target either writes them
// unchanged, or divides the parameters by its own rule; then the hyper-parameters go with the parameters, and
// anything that would be lost is an error.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/source.h"
#include "convert/formats/training/training_tensors.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {

struct OptimizerGroups {
  struct Place {
    size_t group = 0;
    size_t index = 0;  // in the source's order of the group
  };
  std::vector<nlohmann::json> hyper;                // of each group, an object; empty: unknown
  std::map<std::string, Place, std::less<>> place;  // of each parameter of the optimizer, by canonical name

  size_t size() const { return hyper.size(); }
  size_t GroupOf(const std::string& parameter) const { return place.at(parameter).group; }
  // Canonical names, in order.
  std::vector<std::string> MembersOf(size_t group) const;
};

struct TrainingState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t scheduled_samples = 0;  // how far the schedule of the learning rate is: skipped steps do not count
  int64_t consumed_tokens = 0;
  int64_t skipped = 0;         // iterations whose update was left out
  int64_t optimizer_step = 0;  // updates of the moments
  bool step_known = false;     // a file states it, or the iteration that it follows from
  double loss_scale = 0;       // 0: none
  bool dynamic_loss_scale = false;
  int64_t loss_scale_good_steps = 0;                      // since the last overflow or growth
  std::optional<int64_t> loss_scale_hysteresis;           // overflows still tolerated
  bool round_robin_gradients = false;                     // of the training's own ds_config
  std::optional<double> clip_grad;                        // largest norm of the gradients; 0: any
  std::optional<Dtype> params_dtype;                      // 16-bit type that the training computes in
  nlohmann::json schedule = nlohmann::json::object();     // of the learning rate, as its own program has it
  nlohmann::json param_groups = nlohmann::json::array();  // as the source's state has them; empty: unknown
  OptimizerGroups groups;                                 // as the target writes them
  bool adam = true;  // some parameters have Adam's moments, or none has states
  nlohmann::json shared_params =
      nlohmann::json::object();    // further names of parameters (shared_parameters.h)
  std::vector<std::string> notes;  // what is unknown or could not be carried
};

// Begins the notes about state that --allow optimizer left out.
inline constexpr std::string_view kAllowedNote = "allowed: ";
// The source's history, and what was left out on the way to `format`.
nlohmann::json HistoryWith(const Manifest& source, std::string_view format,
                           const std::vector<std::string>& notes);

TrainingState TrainingStateOf(const CheckpointSource& source);

// Those of `param_groups` in a manifest's state; one of all parameters if it is empty. Two groups without
// members in the state are matrices, then vectors, as cairn train makes them. Errors: NotSupported if it is
// unknown which parameters are in which of several groups, or a parameter with a state is in none.
Result<OptimizerGroups> GroupsOfSource(const nlohmann::json& param_groups, const TrainingTensors& tensors);

// The same parameters in `count` groups by `rule`; each takes the hyper-parameters that its parameters had.
// Errors: NotSupported naming a hyper-parameter in which parameters of one group differ, and two of them;
// `allowed`: the first one's count, and a note names the others.
Status PartGroups(const TrainingTensors& tensors, size_t count,
                  const std::function<size_t(const ParameterSpec&)>& rule, bool allowed,
                  TrainingState& state);

// Megatron's rule, and that of cairn train: matrices, which have weight decay, and the others.
inline size_t MatricesThenVectors(const ParameterSpec& spec) { return spec.is_matrix() ? 0 : 1; }

// The hyper-parameters of a group of AdamW that a source does not state: torch's defaults, and in words for a
// note.
nlohmann::json WithAdamWDefaults(const nlohmann::json& hyper);
std::string AdamWDefaultsInWords();

// Hyper-parameters of a group that the target writes; with AdamW's defaults, unless it is of another
// optimizer.
nlohmann::json ParamGroup(const TrainingState& state, size_t group);
// Emits them as entries of a dict that is open, betas as the tuple that torch wants.
void EmitHyperParameters(PickleEmitter& pickle, const nlohmann::json& group);
// Emits a parameter group of torch's optimizers, with `params` in it; entries of `own` win.
void EmitParamGroup(PickleEmitter& pickle, const TrainingState& state, size_t group,
                    const std::vector<size_t>& params, const nlohmann::json& own = nlohmann::json::object());

}  // namespace cairn
