#include "runtime/model/layers/scattered_rows.h"

#include <ATen/ATen.h>

#include "runtime/model/autograd/autograd.h"

namespace cairn {
namespace {

using at::Tensor;

Tensor OwnRows(const Tensor& whole, const ProcessGroup& tp) {
  const Tensor rows = whole.reshape({-1, whole.size(-1)});
  const int64_t count = rows.size(0) / tp.size();
  return rows.narrow(0, tp.rank() * count, count);
}

}  // namespace

Tensor GatherRows(const Tensor& held, const ProcessGroup& group, std::string_view what) {
  Tensor all = at::empty({held.size(0) * group.size(), held.size(1)}, held.options());
  group.AllGather(all, held.contiguous(), what);
  return all;
}

Tensor OnScatteredRows(const std::function<Tensor(const Tensor&)>& each_row, const Tensor& x,
                       const ProcessGroup& tp) {
  const std::vector<int64_t> shape = x.sizes().vec();
  const Tensor own = [&] {
    const ByHand by_hand({x});
    return by_hand.Finish(OwnRows(x, tp).clone(), [shape, tp](const Tensor& grad) -> std::vector<Tensor> {
      return {GatherRows(grad, tp, "scattered rows").view(shape)};
    });
  }();
  const Tensor part = each_row(own);
  const ByHand by_hand({part});
  return by_hand.Finish(GatherRows(part, tp, "scattered rows").view(shape),
                        [tp](const Tensor& grad) -> std::vector<Tensor> { return {OwnRows(grad, tp)}; });
}

}  // namespace cairn
