// Layers whose weight is cut across the tensor parallel ranks. To their callers they are ordinary layers on
// whole activations (ColumnParallelLinear gives this rank's share of the features, RowParallelLinear takes
// it).
//
// Source: Shoeybi et al., "Megatron-LM" (2019), section 3: f is the identity forward and an all-reduce
// backward, g the other way round. Replicated parameters get bit-identical gradients on all tensor parallel
// ranks, since they are computed from all-reduced activations and gradients.
#pragma once

#include "runtime/comm/process_group.h"
#include "runtime/model/autograd.h"

namespace cairn {

// y = x W^T + b, W [out / tp, in]. Activations are [..., features].
class ColumnParallelLinear {
 public:
  ColumnParallelLinear(std::string name, Parameter weight, Parameter bias, ProcessGroup tp)
      : name_(std::move(name)), weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)) {}

  at::Tensor forward(const at::Tensor& x) const;  // [..., in] -> [..., out / tp]

 private:
  std::string name_;  // for the watchdog
  Parameter weight_;
  Parameter bias_;  // [out / tp], or undefined
  ProcessGroup tp_;
};

// y = sum over ranks of x W^T, plus b: W [out, in / tp], b [out] replicated.
class RowParallelLinear {
 public:
  RowParallelLinear(std::string name, Parameter weight, Parameter bias, ProcessGroup tp)
      : name_(std::move(name)), weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)) {}

  at::Tensor forward(const at::Tensor& x) const;  // [..., in / tp] -> [..., out]

 private:
  std::string name_;
  Parameter weight_;
  Parameter bias_;
  ProcessGroup tp_;
};

// Rows of a table that is cut along the vocabulary, plus those of a replicated table of positions.
class VocabularyParallelEmbedding {
 public:
  // `first_id`: the token of row 0 of this rank's `word`, which holds `ids` true rows and then padding.
  VocabularyParallelEmbedding(Parameter word, Parameter position, int64_t first_id, int64_t ids,
                              ProcessGroup tp)
      : word_(std::move(word)),
        position_(std::move(position)),
        first_id_(first_id),
        ids_(ids),
        tp_(std::move(tp)) {}

  at::Tensor forward(const at::Tensor& tokens) const;  // int64 [b, s] -> [b, s, h]

 private:
  Parameter word_;      // [V / tp, h]
  Parameter position_;  // [S, h], S >= s
  int64_t first_id_;
  int64_t ids_;
  ProcessGroup tp_;
};

}  // namespace cairn
