#include "runtime/model/layers/attention_mask.h"

#include <ATen/ATen.h>

#include <bit>
#include <cmath>

namespace cairn {

using at::Tensor;

std::vector<double> AlibiSlopes(int heads) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(heads)));
  std::vector<double> slopes;
  for (int i = 1; i <= power; ++i) slopes.push_back(std::exp2(-8.0 * i / power));
  for (int i = 1; static_cast<int>(slopes.size()) < heads; i += 2)  // every other one of twice as many
    slopes.push_back(std::exp2(-4.0 * i / power));
  return slopes;
}

Tensor AttentionMask::Of(int64_t s, const at::TensorOptions& options, const Tensor& first_keys) const {
  if (slopes_.empty() && (window_ == 0 || window_ >= s) && !first_keys.defined()) return Tensor();
  // CPU kernels take fp32 masks beside 16-bit scores, those of CUDA the scores' own type.
  const at::TensorOptions wanted = options.device().is_cpu() ? options.dtype(at::kFloat) : options;
  if (made_.defined() && made_.size(-1) == s && made_.device() == wanted.device() &&
      made_for_.is_same(first_keys))
    return made_;
  const at::NoGradGuard no_grad;
  const at::TensorOptions exact = wanted.dtype(at::kFloat);
  const Tensor place = at::arange(s, exact);
  const Tensor ahead = place.unsqueeze(0) - place.unsqueeze(1);  // [query, key]
  Tensor mask = at::zeros({1, 1, s, s}, exact);
  if (!slopes_.empty()) mask = at::tensor(slopes_, exact).view({1, -1, 1, 1}) * ahead;
  Tensor unseen = ahead.gt(0);
  if (window_ > 0) unseen = at::logical_or(unseen, ahead.le(-static_cast<double>(window_)));
  if (first_keys.defined())
    unseen = at::logical_or(unseen, place.lt(first_keys.unsqueeze(2)).unsqueeze(1));  // [b, 1, s, s]
  made_ = mask.masked_fill(unseen, -INFINITY).to(wanted);
  made_for_ = first_keys;
  return made_;
}

}  // namespace cairn
