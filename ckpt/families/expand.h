// A family's table applied to one model: its canonical parameters, and how the other system stores them.
#pragma once

#include <optional>

#include "ckpt/families/family.h"
#include "ckpt/families/foreign_model.h"
#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/catalog.h"

namespace cairn {

struct ExpandedModel {
  std::vector<ParameterSpec> parameters;  // in the trainer's order
  std::vector<ForeignTensor> tensors;     // in the order of the other system's state dict
  size_t weights = 0;  // how many of these, the first ones, are not states of the optimizer
};

// The tensors of files, or of a state dict.
enum class StoredForm { kFiles, kMemory, kTorchtitan };
// That of a state dict if only it has a module of one of these names.
StoredForm FormOf(const TensorTable& stored, const Family& family);

// Errors: those of ReadShape; InvalidArgument naming a missing condition, or num_experts if a mixture lacks
// it.
Result<ExpandedModel> Expand(const Family& family, const Model& model, StoredForm form = StoredForm::kFiles);

// The modules of such a model; its sizes do not matter. Errors: those of Expand.
Result<DecoderModules> ModulesOf(const Family& family, Model model);

// The weights, or the biases, of one stored module, which has `groups` groups if its packing is kGrouped.
// Rows are the first dimension, or the second if experts are stacked. `expert`: only that
// one of a stack is stored.
ForeignTensor StoredTensor(std::string name, const std::vector<ParameterSpec>& specs, Packing packing,
                           uint64_t groups, std::optional<uint64_t> expert = {});

// The copies (Family::copies) of canonical parameters in the layers of multi-token prediction: the
// parameter by the name of the stored tensor.
std::map<std::string, std::string> CopiesIn(const Family& family, const Model& model);

// True if `condition` (family.h) holds for a layer of `model`; a missing field counts as false.
bool Holds(const std::string& condition, const Model& model, int layer = 0);

}  // namespace cairn
