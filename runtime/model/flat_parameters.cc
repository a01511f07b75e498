#include "runtime/model/flat_parameters.h"

#include <torch/torch.h>

namespace cairn {
namespace {

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
    : specs_(std::move(specs)), layout_(std::move(layout)), dtype_(dtype) {
  const int64_t size = static_cast<int64_t>(dp * layout_.partition_size);
  weights_ = at::zeros({size}, at::TensorOptions(device).dtype(ToScalarType(dtype)));
  grads_ = at::zeros({size}, at::TensorOptions(device).dtype(at::kFloat));
}

const LocalParameter& FlatParameters::Local(const std::string& name) const {
  for (const LocalParameter& local : layout_.parameters)
    if (SpecOf(local).name == name) return local;
  TORCH_CHECK(false, "parameter ", name, " is not on this rank");
}

Parameter FlatParameters::View(const std::vector<std::string>& names) const {
  const LocalParameter& first = Local(names[0]);
  std::vector<int64_t> shape = ToSizes(first.local_shape);
  uint64_t end = first.flat_begin + first.local_shape.Volume();
  for (size_t i = 1; i < names.size(); ++i) {
    const LocalParameter& next = Local(names[i]);
    TORCH_CHECK(next.flat_begin == end, names[i], " does not follow ", names[i - 1], " in the flat buffer");
    shape[0] += static_cast<int64_t>(next.local_shape[0]);
    end += next.local_shape.Volume();
  }
  const int64_t begin = static_cast<int64_t>(first.flat_begin);
  const int64_t size = static_cast<int64_t>(end) - begin;
  return {weights_.narrow(0, begin, size).view(shape), grads_.narrow(0, begin, size).view(shape)};
}

}  // namespace cairn
