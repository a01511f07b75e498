#include "runtime/model/mlp.h"

#include <torch/torch.h>

namespace cairn {

at::Tensor Mlp::forward(const at::Tensor& x) const { return down_.forward(at::gelu(up_.forward(x), "tanh")); }

}  // namespace cairn
