// The names of Megatron-Core's modules, and the contents other than tensors of both forms of its checkpoints.
//
// Source: megatron-core 0.16.1, models/gpt, optimizer/__init__.py, optimizer_param_scheduler.py; Megatron-LM,
// training/checkpointing.py.
#pragma once

#include <span>

#include "convert/foreign/target_builder.h"
#include "convert/formats/megatron/megatron_layout.h"
#include "convert/formats/training/training_state.h"

namespace cairn {

struct CoreModule {
  std::string_view module;  // of megatron_layout.h
  std::string_view local;   // with Megatron-Core's own layers
  std::string_view fused;   // with Transformer Engine's, whose linear layers have the norms before them
  bool linear = false;      // has an _extra_state beside its parameters
};

// Those of a layer, in the order in which Transformer Engine's layers register them.
std::span<const CoreModule> CoreLayerModules();
// Requires a tensor of a model that CheckMegatronModel accepts for MegatronProgram::kCore.
const CoreModule& CoreModuleOf(const MegatronTensor& tensor);

inline bool InLayer(const MegatronTensor& tensor) {
  return tensor.layer != kBeforeLayers && tensor.layer != kAfterLayers;
}

// Megatron cuts its pipeline evenly, except for the first and the last stage. `layers`: of each pipeline
// chunk. Errors: NotSupported, for a cut that its arguments cannot express.
Status CheckCoreLayers(const std::vector<int>& layers, int virtual_stages);

// The arguments of the training, as its argparse.Namespace has them. `layers`: of each pipeline chunk.
nlohmann::json CoreArguments(const Manifest& manifest, const MegatronShape& shape, const Topology& topology,
                             const std::vector<int>& layers, const TrainingState& state);
// As OptimizerParamScheduler reads it; a constant rate if the schedule is unknown.
nlohmann::json CoreSchedule(const TrainingState& state);

// Sets the groups of `state`. Groups of Megatron's own stay unchanged; those of another program become
// matrices, which have weight decay, and vectors. Errors: those of PartBy; NotSupported if vectors have a
// weight decay that Megatron cannot give them; with `allowed` that is a note.
Status ChooseCoreGroups(const TrainingTensors& tensors, bool allowed, TrainingState& state);
// Checks that the optimizer has moments of every parameter. Errors: NotSupported naming one without.
Status CheckCoreMoments(const TrainingTensors& tensors);
// The values that it adds to the hyper-parameters of group `group`.
nlohmann::json CoreGroupOwn(const TrainingState& state, size_t group);

// Emits the entry grad_scaler of a dict that is open.
void EmitCoreGradScaler(uint32_t zip, const TrainingState& state, TargetBuilder& builder);

// Notes for the user about the optimizer's state. `optimizer`: there is one; `distributed`: as the
// distributed optimizer takes it; `local_spec`: the step as torch's AdamW does; `fp16`: it scales losses.
void AddCoreNotes(bool optimizer, bool distributed, bool local_spec, bool fp16, TrainingState& state);

}  // namespace cairn
