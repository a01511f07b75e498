// The names that a user knows: for a step of cairn.torch those of the saved state dict, otherwise the display
// names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/source.h"
#include "tools/serve/state_dict.h"

namespace cairn {

// All bytes of a tensor that is not one of the training: JSON or a pickle. Errors: NotSupported if it is
// larger than kMaxValueBytes.
Result<std::string> ReadWhole(CheckpointSource& source, uint32_t tensor);

class StateNames {
 public:
  StateNames(StateNames&&) = default;
  StateNames(const StateNames&) = delete;
  // The source must outlive it. Errors: those of reading the state dict of a step, and Corrupt.
  static Result<StateNames> Of(CheckpointSource& source);

  bool has_state_dict() const { return has_state_dict_; }
  // Null if the state dict does not name it.
  const std::string* Find(const TensorEntry& tensor) const;
  std::string Of(const TensorEntry& tensor) const;
  // True if `glob` matches the state dict's name, or FitsGlob() of ckpt/model/tensor.h matches.
  bool Fits(const TensorEntry& tensor, const std::string& glob) const;
  // The state dict of the step; empty for other checkpoints.
  const ReadStateDict& state_dict() const { return read_; }

 private:
  StateNames() = default;

  bool has_state_dict_ = false;
  ReadStateDict read_;
  std::optional<TensorLookup> lookup_;    // of the source's tensors
  std::vector<const std::string*> fqns_;  // of each; null if the state dict does not name it
};

}  // namespace cairn
