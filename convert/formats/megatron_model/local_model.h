// The tensors that one model parallel rank of DeepSpeed holds, under the names that its program has for them,
// in the order in which it registers them.
#pragma once

#include <string>
#include <vector>

#include "convert/formats/megatron_model/megatron_layout.h"

namespace cairn {

struct LocalTensor : MegatronTensor {
  std::string name = {};
  int pipeline_layer = -1;     // of a pipeline: the index of its layer file
  std::string file_name = {};  // its name in that file
  bool copy = false;           // the second occurrence of a tied one: in the optimizer, not in a layer file
};

// How a program names its tensors.
enum class LocalNames {
  kPipeline,  // Megatron-DeepSpeed's pipeline: "3.input_layernorm.weight", "tied_modules.embed.…"
  kLanguage,  // Megatron-DeepSpeed without one: "language_model.encoder.layers.0.…"
  kPlain,     // as the source does
};

struct LocalModel {
  LocalNames names = LocalNames::kPlain;
  MegatronShape shape;                          // of Megatron's
  std::vector<int> layers_per_stage;            // of a pipeline
  std::vector<std::vector<LocalTensor>> ranks;  // by pp * TP + tp

  const std::vector<LocalTensor>& rank(int pp, int tp, int tp_size) const { return ranks[pp * tp_size + tp]; }
};

// `zero`: stages 2 and 3 have no pipeline. Errors: NotSupported, InvalidArgument if the model cannot be
// cut so.
Result<LocalModel> LocalModelOf(const CheckpointSource& source, const TrainingTensors& tensors,
                                const Topology& topology);

// The parts of the written tensors that fill a local array of `role`.
void AddParts(const TrainingTensors& tensors, const LocalTensor& local, Role role, uint32_t array,
              StoredTarget& target);

}  // namespace cairn
