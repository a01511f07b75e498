// Layers whose weight is cut across the tensor parallel ranks. To their callers they are ordinary layers on
// whole activations (ColumnParallelLinear gives this rank's share of the features, RowParallelLinear takes
// it).
//
// Source: Shoeybi et al., "Megatron-LM" (2019), section 3: f is the identity forward and an all-reduce
// backward, g the reverse. Replicated parameters get bit-identical gradients on all tensor parallel
// ranks, since they are computed from all-reduced activations and gradients.
//
// With sequence parallelism (Korthikanti et al. 2022) a rank holds its part of the rows between the layers:
// f gathers rows and g sums and scatters them, with the same bytes, and norms and dropout work on 1/TP of the
// activations. Rows are cut as they lie, [b * s, h], so that each part is one stretch of memory.
#pragma once

#include "runtime/comm/process_group.h"
#include "runtime/model/layers/linear_weight.h"
#include "runtime/model/parameters/parameter.h"

namespace cairn {

// The ranks that layers are cut across, and what each holds of the activations between them.
struct TensorParallel {
  ProcessGroup group;
  int64_t sequence = 0;  // tokens of a sample if ranks hold parts of the rows; 0 if they hold all

  bool cuts_rows() const { return sequence > 0; }
  // The rows of all ranks: [b * s, features].
  at::Tensor AllRows(const at::Tensor& held, std::string_view what) const;
  // Starts the sum of `partial` [b * s, features] over the ranks; the tensor is what this rank holds of it.
  struct Sum {
    at::Tensor held;
    Work work;
  };
  Sum StartSum(at::Tensor partial, std::string_view what) const;
  at::Tensor SumOf(at::Tensor partial, std::string_view what) const;
};

// y = x W^T + b, W [out / tp, in]. Activations are [..., features], or held rows.
class ColumnParallelLinear {
 public:
  ColumnParallelLinear(std::string name, LinearWeight weight, Parameter bias, TensorParallel tp)
      : name_(std::move(name)), weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)) {}

  at::Tensor forward(const at::Tensor& x) const;  // [..., in] -> [..., out / tp]

 private:
  std::string name_;  // for the watchdog
  LinearWeight weight_;
  Parameter bias_;  // [out / tp], or undefined
  TensorParallel tp_;
};

// y = sum over ranks of x W^T, plus b: W [out, in / tp], b [out] replicated.
class RowParallelLinear {
 public:
  RowParallelLinear(std::string name, LinearWeight weight, Parameter bias, TensorParallel tp)
      : name_(std::move(name)), weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)) {}

  at::Tensor forward(const at::Tensor& x) const;  // [..., in / tp] -> [..., out]

 private:
  std::string name_;
  LinearWeight weight_;
  Parameter bias_;  // or undefined
  TensorParallel tp_;
};

// Rows of a table that is cut along the vocabulary.
class VocabularyParallelEmbedding {
 public:
  // `first_id`: the token of row 0 of this rank's `word`, which holds `ids` true rows and then padding.
  VocabularyParallelEmbedding(Parameter word, int64_t first_id, int64_t ids, TensorParallel tp)
      : word_(std::move(word)), first_id_(first_id), ids_(ids), tp_(std::move(tp)) {}

  at::Tensor forward(const at::Tensor& tokens) const;  // int64 [b, s] -> [b, s, h]

 private:
  Parameter word_;  // [V / tp, h]
  int64_t first_id_;
  int64_t ids_;
  TensorParallel tp_;
};

// Adds the rows of a replicated table of positions.
class PositionEmbedding {
 public:
  PositionEmbedding(Parameter table, TensorParallel tp) : table_(std::move(table)), tp_(std::move(tp)) {}

  // [b, s, h] -> the same. `positions`: see Documents.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& positions) const;

 private:
  at::Tensor ForwardInOrder(const at::Tensor& x) const;
  at::Tensor ForwardOf(const at::Tensor& x, const at::Tensor& positions) const;

  Parameter table_;  // [S, h], S >= s
  TensorParallel tp_;
};

}  // namespace cairn
