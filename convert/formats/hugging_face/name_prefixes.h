// The prefixes that a state dict put before a model's own names. One model has one prefix; another prefix is
// that of another model, whose tensors would fill places that the first one left empty.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

struct NamePrefix {
  std::string prefix;
  std::optional<std::string> base;  // of a module's name below the base model; none: the head's
};

class NamePrefixes {
 public:
  // That of a weight or a state, and the tensor of the model that it is, if any.
  void Add(bool state, std::optional<uint32_t> place, NamePrefix prefix) {
    added_.push_back({state, place, std::move(prefix)});
  }
  // `trained`: the tensors of the model that an optimizer holds. Errors: InvalidArgument naming the prefixes
  // of several models.
  Status Check(const std::set<uint32_t>& trained) const;

 private:
  struct Added {
    bool state = false;
    std::optional<uint32_t> place;
    NamePrefix prefix;
  };
  std::vector<Added> added_;
};

}  // namespace cairn
