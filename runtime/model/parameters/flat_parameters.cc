#include "runtime/model/parameters/flat_parameters.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ckpt/base/flat_range.h"
#include "runtime/model/parameters/state_memory.h"

namespace cairn {
namespace {

using at::Tensor;

std::vector<int64_t> ToSizes(const Dims& dims) { return {dims.begin(), dims.end()}; }

}  // namespace

at::ScalarType ToScalarType(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kF16:
      return at::kHalf;
    case Dtype::kBF16:
      return at::kBFloat16;
    default:
      TORCH_CHECK(false, "no training in ", Name(dtype));
  }
}

FlatParameters::FlatParameters(std::vector<ParameterSpec> specs, RankLayout layout, int dp, Dtype dtype,
                               at::Device device)
    : FlatParameters(std::move(specs), layout, dtype, device,
                     {{0, dp * layout.dense.partition_size}, {0, dp * layout.dense.partition_size}}) {}

FlatParameters::FlatParameters(std::vector<ParameterSpec> specs, RankLayout layout, Dtype dtype,
                               at::Device device, const Kept& kept)
    : specs_(std::move(specs)), layout_(std::move(layout)), dtype_(dtype), device_(device), kept_(kept) {
  weights_ = StateZeros("the weights", kept.weights_side, device, kept.weights.size(), ToScalarType(dtype));
  grads_ = StateZeros("the gradients", kept.grads_side, device, kept.grads.size(), at::kFloat);
}

const LocalParameter& FlatParameters::Local(const std::string& name) const {
  for (const LocalParameter& local : layout_.parameters)
    if (SpecOf(local).name == name) return local;
  TORCH_CHECK(false, "parameter ", name, " is not on this rank");
}

FlatParameters::Fused FlatParameters::Fuse(const std::vector<std::string>& names) const {
  const LocalParameter& first = Local(names[0]);
  std::vector<int64_t> shape = ToSizes(first.shape);
  uint64_t end = first.flat_range().end;
  for (size_t i = 1; i < names.size(); ++i) {
    const LocalParameter& next = Local(names[i]);
    TORCH_CHECK(next.flat_begin == end, names[i], " does not follow ", names[i - 1], " in the flat buffer");
    shape[0] += static_cast<int64_t>(next.shape[0]);
    end += next.shape.Volume();
  }
  return {{first.flat_begin, end}, std::move(shape)};
}

Parameter FlatParameters::View(const std::vector<std::string>& names) {
  Fused fused = Fuse(names);
  return GiveOut(fused.range, std::move(fused.shape), fused.range);
}

std::vector<ParameterTile> FlatParameters::Tiles(const std::vector<std::string>& names, int count) {
  const Fused fused = Fuse(names);
  const int64_t rows = fused.shape[0], n = std::min<int64_t>(count, rows);
  const uint64_t row_size = fused.range.size() / static_cast<uint64_t>(rows);
  std::vector<ParameterTile> tiles;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = i * rows / n, end = (i + 1) * rows / n;
    std::vector<int64_t> shape = fused.shape;
    shape[0] = end - begin;
    const FlatRange range{fused.range.begin + begin * row_size, fused.range.begin + end * row_size};
    const size_t number = views_.size();
    tiles.push_back({GiveOut(range, std::move(shape), fused.range), begin, end - begin, number});
  }
  return tiles;
}

Parameter FlatParameters::GiveOut(FlatRange range, std::vector<int64_t> shape, FlatRange whole) {
  Parameter parameter(
      Contains(kept_.weights, range) && kept_.weights_side == Side::kDevice ? Weights(range).view(shape)
                                                                            : Tensor(),
      Contains(kept_.grads, range) && kept_.grads_side == Side::kDevice ? Grads(range).view(shape)
                                                                        : Tensor());
  views_.push_back({range, std::move(shape), parameter, whole});
  return parameter;
}

Tensor FlatParameters::Weights(FlatRange range) const {
  return SliceOf(weights_, range, kept_.weights.begin);
}

Tensor FlatParameters::Grads(FlatRange range) const { return SliceOf(grads_, range, kept_.grads.begin); }

void FlatParameters::SetWeights(const LocalParameter& local, const Tensor& values) {
  const FlatRange there = local.flat_range();
  const FlatRange mine = Overlap(there, kept_.weights);
  const Touches both = Touches::Both();
  if (mine.size() > 0) Weights(mine).copy_(SliceOf(values, mine, there.begin));
}

void FlatParameters::ZeroGrads() {
  const Touches side(kept_.grads_side);
  grads_.zero_();
}

Tensor SliceOf(const Tensor& flat, FlatRange range, uint64_t origin) {
  return flat.narrow(0, static_cast<int64_t>(range.begin - origin), static_cast<int64_t>(range.size()));
}

}  // namespace cairn
