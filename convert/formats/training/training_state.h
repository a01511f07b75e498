// Where a training was, in the words that other systems ask for.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/source.h"
#include "convert/formats/training/optimizer_groups.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {

struct TrainingState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t scheduled_samples = 0;  // how far the schedule of the learning rate is: skipped steps do not count
  int64_t consumed_tokens = 0;
  int64_t skipped = 0;         // iterations whose update was left out
  int64_t optimizer_step = 0;  // updates of the moments
  bool step_known = false;     // a file says it, or the iteration it follows from
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
  nlohmann::json shared_params =
      nlohmann::json::object();    // further names of parameters (shared_parameters.h)
  std::vector<std::string> notes;  // what could not be told or carried
};

// Begins the notes about state that --allow optimizer left out.
inline constexpr std::string_view kAllowedNote = "allowed: ";
// The source's history, and what was left out on the way to `format`.
nlohmann::json HistoryWith(const Manifest& source, std::string_view format,
                           const std::vector<std::string>& notes);

TrainingState TrainingStateOf(const CheckpointSource& source);

// What a target must know before it writes moments. Leaves out what it cannot hold if `allowed`, with a
// note. Errors: NotSupported: those of LeaveOtherStates, and if no file says how many updates the moments
// have had.
Status FitOptimizer(TrainingTensors& tensors, Steps steps, bool allowed, TrainingState& state);

// PartBy() of the state's groups, with a note of what was allowed.
Status PartGroups(const TrainingTensors& tensors, size_t count,
                  const std::function<size_t(const ParameterSpec&)>& rule, bool allowed,
                  TrainingState& state);

// Hyper-parameters of a group that the target writes, AdamW's defaults if the source says none.
nlohmann::json ParamGroup(const TrainingState& state, size_t group);
// Emits them as entries of a dict that is open, betas as the tuple that torch wants.
void EmitHyperParameters(PickleEmitter& pickle, const nlohmann::json& group);
// Emits a parameter group of torch's optimizers, with `params` in it; what `own` says wins.
void EmitParamGroup(PickleEmitter& pickle, const TrainingState& state, size_t group,
                    const std::vector<size_t>& params, const nlohmann::json& own = nlohmann::json::object());

}  // namespace cairn
