#include "runtime/model/layers/documents.h"

#include <ATen/ATen.h>

#include <tuple>

namespace cairn {

at::Tensor DocumentBegins(const at::Tensor& tokens, int64_t eod) {
  const int64_t s = tokens.size(1);
  const at::Tensor behind = at::arange(1, s + 1, tokens.options());
  const at::Tensor next = at::where(tokens.eq(eod), behind, at::zeros_like(behind));
  const at::Tensor begins =
      at::constant_pad_nd(next.narrow(1, 0, s - 1), {1, 0});  // the sample begins one, too
  return std::get<0>(begins.cummax(1)).contiguous();
}

}  // namespace cairn
