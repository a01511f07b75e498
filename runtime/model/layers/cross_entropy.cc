// The logits are the largest activation of a small model, so memory is passed over as rarely as can be:
// blocks of rows that fit the cache are turned into exponentials in place (relative to the local maximum),
// and backward scales them in place to the gradient. What the other ranks know changes only one factor a row.
// On a GPU, where each operation costs a launch, a block is only small enough for its fp32 copy to fit
// memory.
#include "runtime/model/layers/cross_entropy.h"

#include <ATen/ATen.h>

namespace cairn {
namespace {

using at::Tensor;

constexpr int64_t kBlockBytes = 2 << 20;  // of fp32 logits worked on at a time: stays in the cache of a core
constexpr int64_t kGpuBlockBytes = 256 << 20;  // a pass over it takes 50 times as long as its launch
constexpr double kMasked =
    -1e30;  // padding: its exponential is exactly 0, and a row of nothing else stays finite

// Calls `visit(begin, rows)` for blocks of the rows of `logits`.
template <typename Visit>
void ForEachBlock(const Tensor& logits, Visit&& visit) {
  const int64_t bytes = logits.is_cpu() ? kBlockBytes : kGpuBlockBytes;
  const int64_t rows = std::max<int64_t>(1, bytes / 4 / logits.size(1));
  for (int64_t begin = 0; begin < logits.size(0); begin += rows)
    visit(begin, std::min(rows, logits.size(0) - begin));
}

// The values of each row on this rank; all fp32 [n, 1] but the last two.
struct Rows {
  Tensor max;
  Tensor sum;     // of exp(logit - max)
  Tensor target;  // logit of the target, 0 where another rank holds it
  Tensor column;  // int64 [n, 1]: the target's column, 0 where another rank holds it
  Tensor here;    // bool [n, 1]: this rank holds the target
};

Rows Exponentiate(const Tensor& logits, const Tensor& targets, VocabularyShard shard) {
  const int64_t n = logits.size(0);
  const auto fp32 = logits.options().dtype(at::kFloat);
  Rows rows{at::empty({n, 1}, fp32), at::empty({n, 1}, fp32), at::empty({n, 1}, fp32), {}, {}};
  const Tensor local = (targets - shard.first_id).unsqueeze(1);
  rows.here = at::logical_and(local.ge(0), local.lt(shard.ids));
  rows.column = local.masked_fill(rows.here.logical_not(), 0);
  ForEachBlock(logits, [&](int64_t begin, int64_t count) {
    Tensor stored = logits.narrow(0, begin, count);
    Tensor block = stored.to(at::kFloat);  // the same memory for fp32
    block.narrow(1, shard.ids, block.size(1) - shard.ids).fill_(shard.counts_padding ? 0 : kMasked);
    Tensor max = rows.max.narrow(0, begin, count);
    at::amax_out(max, block, {1}, true);
    rows.target.narrow(0, begin, count).copy_(block.gather(1, rows.column.narrow(0, begin, count)));
    block.sub_(max).exp_();
    Tensor sum = rows.sum.narrow(0, begin, count);
    at::sum_out(sum, block, {1}, true);
    if (!block.is_same(stored)) stored.copy_(block);
  });
  rows.target.masked_fill_(rows.here.logical_not(), 0);
  return rows;
}

// In place: exponentials become (softmax - one-hot) * scale. `share` and `scale` fp32 [n, 1] and scalar.
void TurnIntoGradient(const Tensor& exponentials, const Rows& rows, const Tensor& share, const Tensor& scale,
                      VocabularyShard shard) {
  const Tensor factor = share * scale;
  const Tensor at_target = rows.here.to(at::kFloat).mul_(scale).neg_();
  ForEachBlock(exponentials, [&](int64_t begin, int64_t count) {
    Tensor stored = exponentials.narrow(0, begin, count);
    Tensor block = stored.to(at::kFloat);
    block.mul_(factor.narrow(0, begin, count));
    block.narrow(1, shard.ids, block.size(1) - shard.ids).zero_();
    block.scatter_add_(1, rows.column.narrow(0, begin, count), at_target.narrow(0, begin, count));
    if (!block.is_same(stored)) stored.copy_(block);
  });
}

}  // namespace

Tensor VocabularyParallelCrossEntropy(const Tensor& logits, const Tensor& targets, VocabularyShard shard,
                                      const ProcessGroup& tp) {
  const ByHand by_hand({logits});
  const Rows rows = Exponentiate(logits, targets, shard);
  Tensor max = rows.max.clone();
  tp.AllReduceMax(max, "cross entropy maximum");
  Tensor share = (rows.max - max).exp_();  // [n, 1]; times a stored exponential: the softmax
  Tensor sum_and_target = at::cat({rows.sum * share, rows.target}, 1);
  tp.AllReduceSum(sum_and_target, "cross entropy sum and target");
  const Tensor sum = sum_and_target.narrow(1, 0, 1);
  share.div_(sum);
  const Tensor loss = (sum.log() + max - sum_and_target.narrow(1, 1, 1)).mean();
  return by_hand.Finish(
      loss, [exponentials = logits.detach(), rows, share, shard](const Tensor& dloss) -> std::vector<Tensor> {
        TurnIntoGradient(exponentials, rows, share, dloss / static_cast<double>(exponentials.size(0)), shard);
        return {exponentials};
      });
}

}  // namespace cairn
