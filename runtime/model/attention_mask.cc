#include "runtime/model/attention_mask.h"

#include <torch/torch.h>

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

Tensor AttentionMask::Of(int64_t s, const at::TensorOptions& options) const {
  if (slopes_.empty() && (window_ == 0 || window_ >= s)) return Tensor();
  // CPU kernels take fp32 masks beside 16-bit scores, those of CUDA the scores' own type.
  const at::TensorOptions wanted = options.device().is_cpu() ? options.dtype(at::kFloat) : options;
  if (made_.defined() && made_.size(-1) == s && made_.device() == wanted.device()) return made_;
  const at::NoGradGuard no_grad;
  const Tensor place = at::arange(s, at::kFloat);
  const Tensor ahead = place.unsqueeze(0) - place.unsqueeze(1);  // [query, key]
  Tensor mask = at::zeros({1, 1, s, s});
  if (!slopes_.empty()) mask = at::tensor(slopes_, at::kFloat).view({1, -1, 1, 1}) * ahead;
  Tensor unseen = ahead.gt(0);
  if (window_ > 0) unseen = at::logical_or(unseen, ahead.le(-static_cast<double>(window_)));
  made_ = mask.masked_fill(unseen, -INFINITY).to(wanted);
  return made_;
}

}  // namespace cairn
