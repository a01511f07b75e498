// Causal attention on a CPU, forward and backward, by tiles (tiles.h): only scores on and below the diagonal
// are computed, groups of query heads read their key and value head where it lies, and nothing of
// [sequence, sequence] is kept. libtorch's kernel takes MKL's products, wants copies of shared heads, and is
// 1.3 to 3.5 times as slow (Zen 4).
//
// Source: Dao, "FlashAttention-2" (2023), of which backward is; forward holds the scores of a tile's whole
// rows, so its softmax is the plain one.
#pragma once

#include <ATen/Tensor.h>

namespace cairn {

// Whether CausalAttention takes queries like these.
bool HasTiledAttention(const at::Tensor& q);

// q [b, s, heads, d], k and v [b, s, key-value heads, d], whose elements of a head are dense; [b, s, heads,
// d]. Probabilities that multiply 16-bit values are 16-bit, all sums are fp32. The result does not depend on
// the number of threads. `first_keys` (Documents) grow along a sample; tiles of scores that no query sees are
// not computed.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                           const at::Tensor& first_keys = {});

}  // namespace cairn
