// The tensors of all model parallel ranks of a DeepSpeed training, joined to those of the model.
#pragma once

#include "convert/foreign/stored_builder.h"
#include "convert/formats/deepspeed/model_file.h"
#include "convert/formats/deepspeed/pipeline_layers.h"
#include "convert/formats/megatron_model/megatron_names.h"

namespace cairn {

// A tensor of one model parallel rank.
struct RankSlice {
  MegatronName place;  // if the model is not Megatron's, only the name
  int tp = 0;
  Role role = Role::kWeight;
  StoredArray tensor;

  bool is_weight() const { return role == Role::kWeight; }
};

// A training while it is being read: what its readers have collected.
struct RankSlices {
  RankSlices(FileSystem& file_system, DeepSpeedFiles found, ReaderOptions& reader_options)
      : fs(file_system), files(std::move(found)), options(reader_options) {}

  FileSystem& fs;
  const DeepSpeedFiles files;
  ReaderOptions& options;
  std::vector<TorchFile> models;  // model states by model parallel rank
  PipelineLayers layers;          // without layer files: the ranks, and whether the model is Megatron's
  std::vector<RankSlice> slices;
  StoredBuilder builder;
  Manifest manifest;

  const std::string& directory() const { return files.directory; }
  const PyValue& root() const { return models[0].root(); }
  // The weights are the masters, in the optimizer's files.
  bool IsZero3() const { return files.models.empty(); }
  Status Fail(const std::string& file, const Status& status) const {
    return status.WithContext(JoinPath(files.directory, file));
  }
  // Adds a tensor under the name that it has in the model; a buffer of Megatron's goes to the account.
  // Errors: NotSupported naming `file`.
  Status Take(const std::string& name, int tp, Role role, StoredArray array, const std::string& file);
};

// Adds the tensors to the builder, and what the arguments of a Megatron model say to the manifest.
// Errors: NotFound, Corrupt, NotSupported naming file or tensor.
Status JoinSlices(RankSlices& ranks);

}  // namespace cairn
