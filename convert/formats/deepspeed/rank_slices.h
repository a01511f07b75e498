// The tensors of all model parallel ranks of a DeepSpeed training, joined to those of the model.
#pragma once

#include "convert/foreign/stored_builder.h"
#include "convert/formats/deepspeed/pipeline_layers.h"
#include "convert/formats/megatron/megatron_names.h"

namespace cairn {

// A tensor of one model parallel rank.
struct RankSlice {
  MegatronName place;  // if the model is not Megatron's, the name alone
  int tp = 0;
  Role role = Role::kWeight;
  StoredArray tensor;

  bool is_weight() const { return role == Role::kWeight; }
};

// Adds the tensors to the builder, and what the arguments say of a model of Megatron's to the manifest.
// `models`: the model states by model parallel rank. Errors: NotFound, Corrupt, NotSupported naming file or
// tensor.
Status JoinSlices(const std::string& directory, const std::vector<TorchFile>& models,
                  const PipelineLayers& layers, std::vector<RankSlice> slices, ReaderOptions& options,
                  StoredBuilder& builder, Manifest& manifest);

}  // namespace cairn
