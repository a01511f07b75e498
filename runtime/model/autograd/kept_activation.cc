#include "runtime/model/autograd/kept_activation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "runtime/model/parameters/memory_side.h"

namespace cairn {
namespace {

using at::Tensor;

// This rank's share; the last ones are padded, as a gather takes equal parts.
Tensor ShareOf(const Tensor& x, const ProcessGroup& ranks) {
  const Tensor flat = x.reshape({-1});
  const int64_t share = (flat.numel() + ranks.size() - 1) / ranks.size();
  const int64_t begin = std::min(flat.numel(), share * ranks.rank());
  const int64_t count = std::min(share, flat.numel() - begin);
  Tensor part = at::empty({share}, flat.options());
  part.narrow(0, 0, count).copy_(flat.narrow(0, begin, count));
  part.narrow(0, count, share - count).zero_();
  return part;
}

}  // namespace

KeptActivation::KeptActivation(const Tensor& x, const Keeping& keeping)
    : keeping_(keeping), shape_(x.sizes().vec()), options_(x.options()), kept_(x.detach()) {
  if (keeping_.cut_across.size() > 1) kept_ = ShareOf(kept_, keeping_.cut_across);
  if (!keeping_.in_host_memory) return;
  const Tensor here = kept_.contiguous();
  kept_ = HostMemoryLike(here);
  const Touches both = Touches::Both();
  kept_.copy_(here, /*non_blocking=*/true);
}

Tensor KeptActivation::Get() const {
  Tensor x = kept_;
  if (keeping_.in_host_memory) {
    x = at::empty(kept_.sizes(), options_);
    const Touches both = Touches::Both();
    x.copy_(kept_, /*non_blocking=*/true);
  }
  if (keeping_.cut_across.size() == 1) return x;
  Tensor all = at::empty({x.numel() * keeping_.cut_across.size()}, options_);
  keeping_.cut_across.AllGather(all, x, "kept activations");
  const int64_t count = std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<int64_t>());
  return all.narrow(0, 0, count).view(shape_);
}

}  // namespace cairn
