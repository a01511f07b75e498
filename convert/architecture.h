// How another system stores a model: its tensors as boxes that canonical parameters fill, and the files
// beside them.
//
// Data, not code: fused matrices, transposes and other names are rows of such a table, and the verbs that
// write weights know nothing of any architecture.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/tensor.h"

namespace cairn {

// One canonical parameter inside a foreign tensor.
struct ForeignPart {
  std::string parameter;
  Box box;                 // of the foreign tensor
  bool transpose = false;  // the parameter's rows are the box's columns; both have two dimensions
};

struct ForeignTensor {
  std::string name;
  Dims shape;
  std::vector<ForeignPart> parts;  // cover it once
};

struct ForeignModel {
  std::vector<ForeignTensor> tensors;        // in the order of the other system's state dict
  std::map<std::string, std::string> files;  // name -> contents: configuration
};

// The Hugging Face form of a model. `model` is the manifest's; `dtype` is that of the weights.
// Errors: NotSupported naming an architecture that no table knows; InvalidArgument naming a missing or
// ill-typed field.
Result<ForeignModel> HuggingFaceModel(const nlohmann::json& model, Dtype dtype);

// Every parameter under its canonical name.
ForeignModel CanonicalModel(const std::vector<ParameterSpec>& parameters);

// Every part names a parameter of its shape, every parameter is used once. Errors: Corrupt naming the tensor.
Status CheckAgainst(const ForeignModel& model, const std::vector<ParameterSpec>& parameters);

// Reads fields of a manifest's `model`; the first failure is kept in status().
class ModelFields {
 public:
  explicit ModelFields(const nlohmann::json& model) : model_(model) {}
  uint64_t Positive(const char* name);
  double Number(const char* name);
  bool Flag(const char* name);
  // The value, null where it is missing.
  nlohmann::json Optional(const char* name) const;
  const Status& status() const { return status_; }

 private:
  const nlohmann::json* Find(const char* name, const char* type, bool (nlohmann::json::*is)() const noexcept);

  const nlohmann::json& model_;
  Status status_;
};

}  // namespace cairn
