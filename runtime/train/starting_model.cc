#include "runtime/train/starting_model.h"

#include "runtime/config/checkpoint_model.h"
#include "runtime/control/rank_message.h"
#include "runtime/saving/step_model.h"

namespace cairn {
namespace {

using nlohmann::json;

// Names of parameters, of the layers only those of layer 0: they say what layers are made of.
std::vector<std::string> NamesOfOneLayer(const std::vector<ParameterSpec>& parameters) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : parameters)
    if (!spec.name.starts_with("layers.") || spec.name.starts_with("layers.0.")) names.push_back(spec.name);
  return names;
}

// On rank 0: the model's description for the other ranks; empty if the flags must describe it.
Result<std::string> DescribeStart(const TrainConfig& config) {
  const std::optional<StepModel> found = FindStepModel(config.skip_train ? "" : config.save, config.load);
  if (!found || !DescribesModel(found->model)) return std::string();
  const std::vector<std::string> names = NamesOfOneLayer(found->parameters);
  CAIRN_ASSIGN_OR_RETURN(const CheckpointModel model, ReadCheckpointModel(found->step, found->model, names));
  CAIRN_RETURN_IF_ERROR(CheckParameters(model, found->parameters));
  return json{{"step", found->step}, {"model", found->model}, {"names", names}}.dump();
}

}  // namespace

Status TakeStartingModel(ParsedCommandLine& command_line, ControlPlane& control) {
  TrainConfig& config = command_line.config;
  if (config.save.empty() && config.load.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         FromRoot(control, "model of the checkpoint", [&] { return DescribeStart(config); }));
  if (text.empty()) return OkStatus();
  const json start = json::parse(text);
  CAIRN_ASSIGN_OR_RETURN(CheckpointModel model,
                         ReadCheckpointModel(start["step"], start["model"], start["names"]));
  return TakeModel(std::move(model), command_line.given, config);
}

}  // namespace cairn
