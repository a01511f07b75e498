// Adjacent documents in a sample, for positions and attention that stop at their borders: Megatron-LM's
// --reset-position-ids and --reset-attention-mask.
//
// A document ends with the token that is its end; the next one begins after it.
#pragma once

#include <ATen/Tensor.h>

namespace cairn {

// For each token, the index of the first token of its document, int64 [b, s]. `tokens`: int64 [b, s].
at::Tensor DocumentBegins(const at::Tensor& tokens, int64_t eod);

// The documents of a micro-batch, for the model.
struct Documents {
  at::Tensor positions;   // int64 [b, s], each token's in its document; undefined: in its sample
  at::Tensor first_keys;  // int64 [b, s], the first key that a token's query sees; undefined: the sample's
};

}  // namespace cairn
