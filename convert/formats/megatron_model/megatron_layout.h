// A GPT as Megatron's programs hold it: which tensors a tensor parallel rank has, and which boxes of
// canonical parameters fill each. The inverse of megatron_model.h; checkpoint version 3.
//
// Query, key and value are one matrix, group of heads by group of heads; gate and up are another, of whose
// halves each rank has its part; the vocabulary is padded to what TP divides. Source: megatron-core 0.16.1,
// transformer/attention.py, mlp.py; Megatron-DeepSpeed, megatron/model/gpt_model.py.
#pragma once

#include <string>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/model/model.h"
#include "ckpt/model/tensor.h"
#include "convert/formats/megatron_model/megatron_modules.h"
#include "convert/formats/training/training_tensors.h"

namespace cairn {

// A box of a parameter inside a rank's tensor.
struct MegatronPart : BoxMap {
  size_t parameter = 0;  // into the training's parameters
};

struct MegatronTensor {
  const MegatronModule* module = nullptr;  // null in a model of unknown family
  bool bias = false;
  int layer = kBeforeLayers;
  Dims shape;                  // the rank's
  std::vector<Cut> cuts = {};  // of its dimensions, over the ranks
  bool gated = false;          // two halves, each cut by itself
  std::vector<MegatronPart> parts;

  bool is_vocabulary() const { return module && module->is_vocabulary(); }  // its rows are padded
  std::string Kind() const { return bias ? "bias" : "weight"; }
};

// Errors: NotSupported if the manifest's model lacks a size of a GPT.
Result<MegatronShape> MegatronShapeOf(const Model& model, const TrainingTensors& tensors);

// The tensors of one rank, of all layers, embeddings first, in the order in which Megatron-LM and
// Megatron-DeepSpeed register them. Errors: NotSupported naming a tensor that has no place in Megatron's GPT;
// InvalidArgument if TP does not divide heads or units.
Result<std::vector<MegatronTensor>> MegatronTensors(const TrainingTensors& tensors,
                                                    const MegatronShape& shape, const Topology& topology,
                                                    int rank);

// The modules that a program makes with the arguments for the model. Errors: NotSupported naming the fields
// of the model's function that it has no arguments for.
Result<DecoderModules> ModulesOfProgram(const Model& model, const MegatronShape& shape);

// Checks that a program with the written arguments computes the model's function and has exactly these
// tensors. Errors: NotSupported naming the fields or the tensors in which it differs.
Status CheckMegatronModel(const Model& model, const TrainingTensors& tensors, const MegatronShape& shape);

// The arguments of a training of it, as argparse.Namespace has them. The caller adds those that depend on the
// rank of a file.
nlohmann::json MegatronArguments(const Model& model, const MegatronShape& shape, const Topology& topology);

}  // namespace cairn
