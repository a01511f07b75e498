// The contents other than tensors of both forms of Megatron-Core's checkpoints.
//
// Source: megatron-core 0.16.1, optimizer/__init__.py, optimizer_param_scheduler.py; Megatron-LM,
// training/checkpointing.py.
#pragma once

#include "convert/foreign/target_builder.h"
#include "convert/foreign/write_options.h"
#include "convert/formats/megatron_model/megatron_layout.h"
#include "convert/formats/training/state_places.h"
#include "convert/formats/training/training_state.h"

namespace cairn {

// The Megatron optimizer that the state is for.
enum class CoreOptimizer { kNone, kFp32, kFloat16, kDistributed };

// A form of its checkpoints: the places of an optimizer's states, and of the distributed one's.
struct CoreForm {
  StatePlaces plain, sharded;
  bool distributed = false;  // torch_dist, which holds an optimizer without masters, too
};
inline constexpr CoreForm kTorchForm{kMegatronPlaces, kBufferPlaces, false},
    kTorchDistForm{kTorchDistPlaces, kShardedTorchDistPlaces, true};

// A source as Megatron-Core's GPT in one of the two forms of its checkpoints, and the files as they are
// planned.
struct CorePlan {
  CorePlan(const CheckpointSource& from, const TargetOptions& how)
      : source(from), options(how), state(TrainingStateOf(from)), topology(how.topology) {}

  // Chooses tensors, layers of each stage and the optimizer. Errors: NotSupported, InvalidArgument: what
  // Megatron cannot hold.
  Status Choose(const CoreForm& form);
  bool distributed() const { return optimizer == CoreOptimizer::kDistributed; }
  // The arguments of the training, as its argparse.Namespace has them.
  nlohmann::json Arguments() const;
  // Megatron has an optimizer of their own for experts that are spread over ranks, and for Muon's parameters:
  // the groups of each.
  std::vector<std::vector<size_t>> Optimizers() const;
  // The hyper-parameters of a group, with the values that Megatron adds.
  nlohmann::json GroupOf(size_t group) const;
  // Emit entries of a dict that is open: arguments and progress; the scale of losses, which fp16 needs; the
  // schedule.
  void EmitProgress(PickleEmitter& pickle, const nlohmann::json& arguments) const;
  void EmitGradScaler(uint32_t zip);
  void EmitSchedule(PickleEmitter& pickle) const;
  // Adds notes for the user about the optimizer's state.
  void AddNotes();

  const CheckpointSource& source;
  const TargetOptions& options;
  TrainingState state;
  const Topology topology;
  TrainingTensors tensors;
  MegatronShape shape;
  std::vector<int> layers;  // of each chunk of the pipeline
  CoreOptimizer optimizer = CoreOptimizer::kNone;
  StatePlaces places = {};  // of its states
  TargetBuilder builder;

 private:
  Status ChooseOptimizer(const CoreForm& form);
};

// The arguments that do not depend on the form and the optimizer.
nlohmann::json CoreArguments(const Manifest& manifest, const MegatronShape& shape, const Topology& topology,
                             const std::vector<int>& layers, const TrainingState& state);
// As OptimizerParamScheduler reads it; a constant rate if the schedule is unknown.
nlohmann::json CoreSchedule(const TrainingState& state);

// The values that Megatron adds to the hyper-parameters of group `group`.
nlohmann::json CoreGroupOwn(const TrainingState& state, size_t group);

// Emits common.pt, the part of a distributed checkpoint that all ranks share: arguments, progress, the
// optimizer's hyper-parameters, the schedule, and how a loader asks for the content.
void EmitTorchDistCommon(CorePlan& plan, uint32_t zip);

}  // namespace cairn
