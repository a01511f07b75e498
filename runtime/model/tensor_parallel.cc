#include "runtime/model/tensor_parallel.h"

#include <torch/torch.h>

#include "runtime/model/gemm.h"

namespace cairn {
namespace {

using at::Tensor;

Tensor AsRows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// `rows` [n, out] in the leading dimensions of `like`.
Tensor LikeInput(const Tensor& rows, const Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = rows.size(-1);
  return rows.view(shape);
}

}  // namespace

Tensor ColumnParallelLinear::forward(const Tensor& x) const {
  const ByHand by_hand({x});
  const Tensor y = LinearForward(AsRows(x), weight_.value, bias_.value);
  return by_hand.Finish(LikeInput(y, x), [this, x](const Tensor& dy) -> std::vector<Tensor> {
    const Tensor dy_rows = AsRows(dy);
    const Tensor dx = LinearInputGrad(dy_rows, weight_.value);
    Work reduction = tp_.AllReduceSumAsync(dx, name_ + " input grad");  // under the weight's gradient
    AddLinearWeightGrad(weight_.grad, dy_rows, AsRows(x));
    if (bias_.grad.defined()) AddLinearBiasGrad(bias_.grad, dy_rows);
    reduction.Wait();
    return {LikeInput(dx, x)};
  });
}

Tensor RowParallelLinear::forward(const Tensor& x) const {
  const ByHand by_hand({x});
  const bool cut = tp_.size() > 1;
  Tensor y = LinearForward(AsRows(x), weight_.value, cut ? Tensor() : bias_.value);
  if (cut) {
    tp_.AllReduceSum(y, name_ + " output");
    y.add_(bias_.value);
  }
  return by_hand.Finish(LikeInput(y, x), [this, x](const Tensor& dy) -> std::vector<Tensor> {
    const Tensor dy_rows = AsRows(dy);
    AddLinearWeightGrad(weight_.grad, dy_rows, AsRows(x));
    AddLinearBiasGrad(bias_.grad, dy_rows);
    return {LikeInput(LinearInputGrad(dy_rows, weight_.value), x)};
  });
}

Tensor VocabularyParallelEmbedding::forward(const Tensor& tokens) const {
  const ByHand by_hand({});
  const int64_t s = tokens.size(1);
  const Tensor local = (tokens - first_id_).view({-1});
  const Tensor elsewhere = at::logical_or(local.lt(0), local.ge(ids_)).unsqueeze(1);
  const Tensor rows = local.masked_fill(elsewhere.squeeze(1), 0);
  Tensor x = word_.value.index_select(0, rows);
  if (tp_.size() > 1) {
    x.masked_fill_(elsewhere, 0);
    tp_.AllReduceSum(x, "embedding output");
  }
  x = x.view({tokens.size(0), s, -1}).add_(position_.value.narrow(0, 0, s));
  return by_hand.Finish(x, [this, rows, elsewhere, s](const Tensor& dy) -> std::vector<Tensor> {
    position_.grad.narrow(0, 0, s).add_(at::sum(dy, {0}, false, at::kFloat));
    const Tensor dy_rows = AsRows(dy).to(at::kFloat);
    Tensor(word_.grad).index_add_(0, rows, tp_.size() > 1 ? dy_rows.masked_fill(elsewhere, 0) : dy_rows);
    return {};
  });
}

}  // namespace cairn
