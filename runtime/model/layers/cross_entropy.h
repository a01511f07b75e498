// Cross entropy of logits that are cut along the vocabulary, without ever gathering them.
//
// Three small all-reduces of one number a token: the maximum, the target's logit, the sum of exponentials.
// Padding columns of the vocabulary take no part. Sums are in fp32.
#pragma once

#include "runtime/comm/process_group.h"
#include "runtime/model/autograd/autograd.h"

namespace cairn {

// The columns of the vocabulary that this rank's logits hold.
struct VocabularyShard {
  int64_t first_id = 0;
  int64_t ids = 0;  // true columns; those after them are padding
  // false: padding is left out of the softmax, so the loss does not depend on TP. true: padding counts, with
  // logits of 0 that learn nothing, roughly as in Megatron, whose padding rows are weights like any other.
  bool counts_padding = false;
};

// Mean over the n tokens of -log softmax(logits)[target]: an fp32 scalar, the same on all ranks of `tp`.
// `logits` [n, V / tp] is overwritten; targets are int64 [n], below the true vocabulary.
at::Tensor VocabularyParallelCrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                                          VocabularyShard shard, const ProcessGroup& tp);

}  // namespace cairn
