#include "tools/serve/state_names.h"

#include "ckpt/base/glob.h"
#include "ckpt/model/tensor.h"

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
  for (const auto& [fqn, where] : names.read_.tensors.items())
    names.fqns_[{where.value("name", ""), where.value("role", "")}] = fqn;
  return names;
}

const std::string* StateNames::Find(const TensorEntry& tensor) const {
  const auto found = fqns_.find({tensor.spec.name, std::string(Name(tensor.role))});
  return found == fqns_.end() ? nullptr : &found->second;
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
