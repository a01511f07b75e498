// Finds experts of a layer that are equal bit for bit: savers that wrote the experts of one rank for those of
// another have done this (Megatron-LM#1836, #4200, verl#2086). A training moves every expert, so equal ones
// are a fault, except before the first update of a model that was made of copies.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/model/tensor.h"

namespace cairn {

// The experts of one tensor, whose bytes come in row-major order.
class ExpertCheck {
 public:
  explicit ExpertCheck(const TensorEntry& stack);
  void Add(std::span<const std::byte> bytes);
  // After all bytes: "experts 0 = 4 are equal ...", or empty. Constant experts, such as biases that are
  // all zero, may be equal.
  std::string Equal() const;

 private:
  void EndExpert();

  uint64_t expert_bytes_ = 0;
  uint64_t element_bytes_ = 0;
  uint64_t left_ = 0;             // bytes of the current expert that have not come
  uint64_t count_ = 0;            // experts that have come
  bool is_constant_ = true;       // so far, the current one
  std::vector<std::byte> first_;  // its first element
  Hasher hasher_;
  std::map<Digest, std::vector<uint64_t>> experts_;  // those that are not constant
};

}  // namespace cairn
