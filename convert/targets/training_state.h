// Where a training was, in the words that other systems ask for.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/source.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {

struct TrainingState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t skipped = 0;         // iterations whose update was left out
  int64_t optimizer_step = 0;  // updates of the moments
  double loss_scale = 0;       // 0: none
  bool dynamic_loss_scale = false;
  std::optional<double> clip_grad;                        // largest norm of the gradients; 0: any
  std::optional<Dtype> params_dtype;                      // 16-bit type that the training computes in
  nlohmann::json schedule = nlohmann::json::object();     // of the learning rate, as its own program has it
  nlohmann::json param_groups = nlohmann::json::array();  // hyper-parameters; empty: unknown
  nlohmann::json shared_params =
      nlohmann::json::object();    // further names of parameters (shared_parameters.h)
  std::vector<std::string> notes;  // what could not be told or carried
};

TrainingState TrainingStateOf(const CheckpointSource& source);

// Hyper-parameters of group `group` of `count`: those of the source where it has as many groups or one, else
// torch.optim.AdamW's defaults.
nlohmann::json ParamGroup(const TrainingState& state, size_t group, size_t count);
// Emits them as entries of a dict that is open, betas as the tuple that torch wants.
void EmitHyperParameters(PickleEmitter& pickle, const nlohmann::json& group);

}  // namespace cairn
