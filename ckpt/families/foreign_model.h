// How another system stores a model: its tensors as boxes that canonical parameters fill, and its other
// files.
//
// Data, not code: fused matrices, transposes and other names are rows of such a table, and the verbs that
// write weights do not depend on the architecture.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/model/model.h"
#include "ckpt/model/tensor.h"

namespace cairn {

// A box of a canonical parameter inside a foreign tensor: usually the whole parameter, one head of many if
// heads alternate.
struct ForeignPart : BoxMap {
  std::string parameter;
};

struct ForeignTensor {
  std::string name;
  Dims shape;
  std::vector<ForeignPart> parts;  // cover it once
  // Shape under which the parts address the tensor: the last dimension split in two, so that every n-th
  // index is a box. Empty: its own.
  Dims seen = {};

  const Dims& seen_shape() const { return seen.rank() > 0 ? seen : shape; }
};

struct ForeignModel {
  std::vector<ForeignTensor> tensors;                // in the order of the other system's state dict
  std::map<std::string, std::string> files;          // name -> contents: configuration
  std::map<std::string, std::string> metadata = {};  // of each safetensors file
  // Parameters of `tensors` that are copies of others: the original by the copy's name.
  std::map<std::string, std::string> copies = {};
};

// The key of a manifest's model["hugging_face"] for the names of copies that a release came with.
inline constexpr const char* kCopies = "copies";

// The Hugging Face form of a model, with config.json and generation_config.json. `model` is the manifest's;
// `dtype` is that of the weights. A model of another family that was read with its config.json
// (`parameters` have its names) keeps both. Errors: NotSupported naming an architecture that no table knows;
// InvalidArgument naming a missing or ill-typed field.
Result<ForeignModel> HuggingFaceModel(const Model& model, Dtype dtype,
                                      const std::vector<ParameterSpec>& parameters);

// Removes `auto_map` from config.json if it names code in the same directory; true if it did.
bool LeaveOutCode(ForeignModel& model);

// `model_type "x9" ("XForCausalLM")`: model_type and class in the config.json of a model whose family has no
// table; else empty.
std::string FamilyWithoutTable(const Model& model);

// Every parameter under its canonical name.
ForeignModel CanonicalModel(const std::vector<ParameterSpec>& parameters);

// Checks that every part is a box of a parameter of that shape, and that every element of every parameter is
// used once. Errors: Corrupt naming the tensor.
Status CheckAgainst(const ForeignModel& model, const std::vector<ParameterSpec>& parameters);

}  // namespace cairn
