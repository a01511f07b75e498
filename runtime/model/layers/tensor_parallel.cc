#include "runtime/model/layers/tensor_parallel.h"

#include <ATen/ATen.h>

#include "runtime/model/autograd/autograd.h"
#include "runtime/model/gemm/gemm.h"
#include "runtime/model/layers/scattered_rows.h"

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

Tensor TensorParallel::AllRows(const Tensor& held, std::string_view what) const {
  const Tensor rows = AsRows(held);
  return cuts_rows() ? GatherRows(rows, group, what) : rows;
}

TensorParallel::Sum TensorParallel::StartSum(Tensor partial, std::string_view what) const {
  if (!cuts_rows()) {
    Work work = group.AllReduceSumAsync(partial, what);
    return {partial, std::move(work)};
  }
  const Tensor held = at::empty({partial.size(0) / group.size(), partial.size(1)}, partial.options());
  Work work = group.ReduceScatterSumAsync(held.view({-1}), partial.view({-1}), what);
  return {held, std::move(work)};
}

Tensor TensorParallel::SumOf(Tensor partial, std::string_view what) const {
  if (group.size() == 1) return partial;
  Sum sum = StartSum(std::move(partial), what);
  sum.work.Wait();
  return sum.held;
}

Tensor ColumnParallelLinear::forward(const Tensor& x) const {
  const ByHand by_hand({x});
  const Tensor y = weight_.Forward(tp_.AllRows(x, name_ + " input"), bias_.value());
  const Tensor samples = tp_.cuts_rows() ? y.view({-1, tp_.sequence, y.size(1)}) : LikeInput(y, x);
  return by_hand.Finish(samples, [this, x](const Tensor& dy) -> std::vector<Tensor> {
    const Tensor dy_rows = AsRows(dy);
    // The sum runs under the weight's gradient.
    TensorParallel::Sum dx = tp_.StartSum(weight_.InputGrad(dy_rows), name_ + " input grad");
    weight_.AddGrad(dy_rows, tp_.AllRows(x, name_ + " input again"));
    if (bias_.defined()) AddLinearBiasGrad(bias_.grad(), dy_rows);
    dx.work.Wait();
    return {dx.held.view(x.sizes())};
  });
}

Tensor RowParallelLinear::forward(const Tensor& x) const {
  const ByHand by_hand({x});
  const bool cut = tp_.group.size() > 1;
  Tensor y = weight_.Forward(AsRows(x), cut ? Tensor() : bias_.value());
  if (cut) {
    y = tp_.SumOf(y, name_ + " output");
    if (bias_.defined()) y.add_(bias_.value());
  }
  const Tensor held = tp_.cuts_rows() ? y : LikeInput(y, x);
  return by_hand.Finish(held, [this, x](const Tensor& dy) -> std::vector<Tensor> {
    const Tensor dy_rows = tp_.AllRows(dy, name_ + " output grad");
    weight_.AddGrad(dy_rows, AsRows(x));
    if (bias_.defined()) AddLinearBiasGrad(bias_.grad(), dy_rows);
    return {LikeInput(weight_.InputGrad(dy_rows), x)};
  });
}

Tensor VocabularyParallelEmbedding::forward(const Tensor& tokens) const {
  const ByHand by_hand({});
  const Tensor local = (tokens - first_id_).view({-1});
  const Tensor elsewhere = at::logical_or(local.lt(0), local.ge(ids_)).unsqueeze(1);
  const Tensor rows = local.masked_fill(elsewhere.squeeze(1), 0);
  Tensor x = word_.value().index_select(0, rows);
  if (tp_.group.size() > 1) x = tp_.SumOf(x.masked_fill_(elsewhere, 0), "embedding output");
  if (!tp_.cuts_rows()) x = x.view({tokens.size(0), tokens.size(1), -1});
  return by_hand.Finish(x, [this, rows, elsewhere](const Tensor& dy) -> std::vector<Tensor> {
    const Tensor dy_rows = tp_.AllRows(dy, "embedding output grad").to(at::kFloat);
    word_.grad().index_add_(0, rows, tp_.group.size() > 1 ? dy_rows.masked_fill(elsewhere, 0) : dy_rows);
    return {};
  });
}

Tensor PositionEmbedding::forward(const Tensor& x, const Tensor& positions) const {
  return positions.defined() ? ForwardOf(x, positions) : ForwardInOrder(x);
}

Tensor PositionEmbedding::ForwardOf(const Tensor& x, const Tensor& positions) const {
  const ByHand by_hand({x});
  const Tensor all = positions.view({-1});
  const Tensor held = tp_.cuts_rows() ? all.narrow(0, tp_.group.rank() * x.size(0), x.size(0)) : all;
  const Tensor y = x + table_.value().index_select(0, held).view(x.sizes());
  return by_hand.Finish(y, [this, all](const Tensor& dy) -> std::vector<Tensor> {
    table_.grad().index_add_(0, all, tp_.AllRows(dy, "position grad").to(at::kFloat));
    return {dy};
  });
}

Tensor PositionEmbedding::ForwardInOrder(const Tensor& x) const {
  const ByHand by_hand({x});
  const int64_t s = tp_.cuts_rows() ? tp_.sequence : x.size(1);
  const Tensor table = table_.value().narrow(0, 0, s);
  Tensor y;
  if (tp_.cuts_rows()) {
    const int64_t first = tp_.group.rank() * x.size(0);
    y = x + table.index_select(
                0, at::arange(first, first + x.size(0), x.options().dtype(at::kLong)).remainder_(s));
  } else {
    y = x + table;
  }
  return by_hand.Finish(y, [this, s](const Tensor& dy) -> std::vector<Tensor> {
    const Tensor samples = tp_.AllRows(dy, "position grad").view({-1, s, dy.size(-1)});
    table_.grad().narrow(0, 0, s).add_(at::sum(samples, {0}, false, at::kFloat));
    return {dy};
  });
}

}  // namespace cairn
