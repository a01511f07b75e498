#include "tools/serve/state_names.h"

#include "ckpt/base/glob.h"
#include "ckpt/model/tensor.h"
#include "ckpt/step/step_reader.h"

namespace cairn {

Result<std::string> ReadWhole(CheckpointSource& source, uint32_t tensor) {
  const TensorEntry& entry = source.catalog().tensors[tensor];
  if (entry.bytes() > kMaxValueBytes)
    return NotSupported("{}: {} holds {} bytes outside of tensors", source.name(), DisplayName(entry),
                        entry.bytes());
  std::string bytes(entry.bytes(), '\0');
  if (bytes.empty()) return bytes;
  CAIRN_RETURN_IF_ERROR(
      source.ReadBox(tensor, Box::Whole(entry.spec.shape), std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Result<StateNames> StateNames::Of(CheckpointSource& source) {
  StateNames names;
  const auto found = TensorLookup(source.catalog()).Find(kStateDictName, Role::kJson);
  if (!found.ok()) return names;
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadWhole(source, *found));
  Result<ReadStateDict> read = ParseStateDict(text);
  if (!read.ok()) return read.status().WithContext(source.name());
  names.has_state_dict_ = true;
  names.read_ = std::move(*read);
  const StepReader* const step = source.native_step();
  if (step != nullptr)
    names.lookup_.emplace(step->catalog());
  else
    names.lookup_.emplace(source.catalog());
  names.fqns_.resize(source.catalog().tensors.size());
  for (const ReadStateDict::Tensor& tensor : names.read_.tensors) {
    const Result<Role> role = RoleNamed(tensor.role);
    if (!role.ok()) continue;
    const Result<uint32_t> number = names.lookup_->Find(tensor.name, *role);
    if (number.ok()) names.fqns_[*number] = &tensor.fqn;
  }
  return names;
}

const std::string* StateNames::Find(const TensorEntry& tensor) const {
  if (!lookup_) return nullptr;
  const Result<uint32_t> number = lookup_->Find(tensor.spec.name, tensor.role);
  return number.ok() ? fqns_[*number] : nullptr;
}

std::string StateNames::Of(const TensorEntry& tensor) const {
  const std::string* fqn = Find(tensor);
  return fqn ? *fqn : tensor.role == Role::kTraining ? tensor.spec.name : DisplayName(tensor);
}

bool StateNames::Fits(const TensorEntry& tensor, const std::string& glob) const {
  const std::string* fqn = Find(tensor);
  return (fqn && FitsGlob(*fqn, glob)) || FitsGlob(tensor, glob);
}

}  // namespace cairn
