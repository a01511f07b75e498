#include "runtime/train/starting_model.h"

#include "ckpt/job/job_ranks.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/step/step_reader.h"
#include "runtime/config/checkpoint_model.h"

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

// The newest step of `save_dir` that opens, or else of the step or run directory `load`; null if there is
// none: resuming reports why (resume.h). Either may be empty.
std::unique_ptr<StepReader> OpenStart(const std::string& save_dir, const std::string& load) {
  for (const std::string& place : {save_dir, load}) {
    if (place.empty()) continue;
    Result<std::unique_ptr<StepReader>> step =
        OpenCheckpoint(FileSystem::Posix(), place, [](const Status&) {});
    if (step.ok()) return std::move(step).value();
  }
  return nullptr;
}

// On rank 0: the model's description for the other ranks; empty if the flags must describe it.
Result<std::string> DescribeStart(const TrainConfig& config) {
  const auto step = OpenStart(config.skip_train ? "" : config.save, config.load);
  if (!step || !step->manifest().model.HasSizes()) return std::string();
  const std::vector<ParameterSpec> parameters = step->catalog().Parameters();
  const std::vector<std::string> names = NamesOfOneLayer(parameters);
  const Model& facts = step->manifest().model;
  CAIRN_ASSIGN_OR_RETURN(const CheckpointModel model, ReadCheckpointModel(step->directory(), facts, names));
  CAIRN_RETURN_IF_ERROR(CheckParameters(model, parameters));
  return json{{"step", step->directory()}, {"model", facts}, {"names", names}}.dump();
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
