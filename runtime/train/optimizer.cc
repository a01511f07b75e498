// The share is cut into stretches of parameters with the same weight decay; adjacent ones merge, so that the
// fused kernel gets few tensors. A tied copy on the last stage is in no stretch: the engine copies the first
// stage's weights over it after the update. For the norm each rank counts one partition, without such copies,
// and of tensors that tensor parallel ranks hold alike only the first rank's; the sum over the world then has
// each element once.

#include "runtime/train/optimizer.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

namespace cairn {
namespace {

using at::Tensor;

constexpr int64_t kNormBlock = 1 << 16;  // elements of one task: the sum depends on no number of threads

// In fp64: in fp32 a sum of 2^20 squares is 2e-5 too low. Eight sums at once, so that the adder is kept busy.
double SquareSumOf(const float* values, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int k = 0; k < 8; ++k) sums[k] += static_cast<double>(values[i + k]) * values[i + k];
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

double SquareSumOnCpu(const Tensor& grad) {
  const float* const values = grad.const_data_ptr<float>();
  const int64_t count = grad.numel();
  std::vector<double> blocks((count + kNormBlock - 1) / kNormBlock);
  at::parallel_for(0, static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      blocks[i] = SquareSumOf(values + i * kNormBlock, std::min(kNormBlock, count - i * kNormBlock));
  });
  return std::accumulate(blocks.begin(), blocks.end(), 0.0);
}

// The parts of `range` whose parameter satisfies `wanted`, adjacent ones merged.
template <typename Predicate>
std::vector<FlatRange> Where(const RankLayout& layout, FlatRange range, Predicate&& wanted) {
  std::vector<FlatRange> found;
  for (const LocalParameter& local : layout.parameters) {
    const uint64_t begin = std::max(range.begin, local.flat_begin);
    const uint64_t end = std::min(range.end, local.flat_begin + local.local_shape.Volume());
    if (begin >= end || !wanted(local)) continue;
    if (!found.empty() && found.back().end == begin) {
      found.back().end = end;
    } else {
      found.push_back({begin, end});
    }
  }
  return found;
}

Tensor Slice(const Tensor& flat, FlatRange range, uint64_t origin = 0) {
  return flat.narrow(0, static_cast<int64_t>(range.begin - origin), static_cast<int64_t>(range.size()));
}

}  // namespace

Optimizer::Optimizer(const TrainConfig& config, const FlatParameters& parameters, const ParallelDims& dims)
    : parameters_(parameters), beta1_(config.adam_beta1), beta2_(config.adam_beta2), eps_(config.adam_eps) {
  const RankLayout& layout = parameters.layout();
  const Topology& topology = dims.topology;
  share_ =
      topology.zero == 0 ? FlatRange{0, topology.dp * layout.partition_size} : layout.Partition(dims.at.dp);
  const Tensor weights = Slice(parameters.weights(), share_);
  const auto fp32 = weights.options().dtype(at::kFloat);
  master_ = weights.to(at::kFloat);
  exp_avg_ = at::zeros(weights.sizes(), fp32);
  exp_avg_sq_ = at::zeros(weights.sizes(), fp32);
  step_ = at::zeros({}, fp32);

  const auto spec = [&](const LocalParameter& local) -> const ParameterSpec& {
    return parameters.SpecOf(local);
  };
  const auto is_copy = [&](const LocalParameter& local) {
    return spec(local).tied_to_last && dims.at.pp > 0;
  };
  const auto decays = [&](const LocalParameter& local) {
    return !is_copy(local) && spec(local).shape.rank() >= 2;
  };
  const auto does_not = [&](const LocalParameter& local) {
    return !is_copy(local) && spec(local).shape.rank() < 2;
  };
  const auto counts = [&](const LocalParameter& local) {
    return !is_copy(local) && (spec(local).tp_dim != kReplicated || dims.at.tp == 0);
  };
  groups_.push_back(MakeGroup(Where(layout, share_, decays), config.weight_decay));
  groups_.push_back(MakeGroup(Where(layout, share_, does_not), 0));
  // Also under ZeRO 0 each data parallel rank counts its partition only: the sum over the world is then the
  // norm.
  for (const FlatRange& range : Where(layout, layout.Partition(dims.at.dp), counts))
    counted_grads_.push_back(Slice(parameters.grads(), range));
}

Optimizer::Group Optimizer::MakeGroup(const std::vector<FlatRange>& stretches, double weight_decay) const {
  Group group{.weight_decay = weight_decay,
              .masters = {},
              .grads = {},
              .exp_avgs = {},
              .exp_avg_sqs = {},
              .steps = {}};
  for (const FlatRange& range : stretches) {
    group.masters.push_back(Slice(master_, range, share_.begin));
    group.grads.push_back(Slice(parameters_.grads(), range));
    group.exp_avgs.push_back(Slice(exp_avg_, range, share_.begin));
    group.exp_avg_sqs.push_back(Slice(exp_avg_sq_, range, share_.begin));
    group.steps.push_back(step_);
  }
  return group;
}

void Optimizer::SetMaster(const LocalParameter& local, const Tensor& values) {
  const uint64_t begin = std::max(share_.begin, local.flat_begin);
  const uint64_t end = std::min(share_.end, local.flat_begin + local.local_shape.Volume());
  if (begin < end)
    Slice(master_, {begin, end}, share_.begin).copy_(Slice(values, {begin, end}, local.flat_begin));
}

double Optimizer::SquareSum() const {
  if (step_.is_cpu()) {
    double sum = 0;
    for (const Tensor& grad : counted_grads_) sum += SquareSumOnCpu(grad);
    return sum;
  }
  Tensor sum = at::zeros({}, step_.options().dtype(at::kDouble));
  for (const Tensor& grad : counted_grads_)
    sum += at::linalg_vector_norm(grad, 2, std::nullopt, false, at::kDouble).square_();
  return sum.item<double>();
}

double Optimizer::CountZeros() const {
  double zeros = 0;
  for (const Tensor& grad : counted_grads_)
    zeros += static_cast<double>(grad.numel() - at::count_nonzero(grad).item<int64_t>());
  return zeros;
}

void Optimizer::Step(double lr, double grad_divisor, int64_t step) {
  step_.fill_(static_cast<double>(step));
  const Tensor divisor = at::full({}, grad_divisor, step_.options());
  for (const Group& group : groups_)
    if (!group.masters.empty())
      at::_fused_adamw_(group.masters, group.grads, group.exp_avgs, group.exp_avg_sqs, {}, group.steps, lr,
                        beta1_, beta2_, group.weight_decay, eps_, /*amsgrad=*/false, /*maximize=*/false,
                        divisor);
  if (parameters_.dtype() != Dtype::kF32) Slice(parameters_.weights(), share_).copy_(master_);
}

std::vector<StateBuffers::Part> Optimizer::Parts() const {
  const auto part = [](Role role, Dtype dtype, const Tensor& data, FlatRange covers) {
    return StateBuffers::Part{role, dtype, static_cast<std::byte*>(data.mutable_data_ptr()), covers,
                              data.is_cuda()};
  };
  const FlatRange all{0, static_cast<uint64_t>(parameters_.weights().numel())};
  std::vector<StateBuffers::Part> parts{part(Role::kWeight, parameters_.dtype(), parameters_.weights(), all)};
  if (parameters_.dtype() != Dtype::kF32) parts.push_back(part(Role::kMaster, Dtype::kF32, master_, share_));
  parts.push_back(part(Role::kExpAvg, Dtype::kF32, exp_avg_, share_));
  parts.push_back(part(Role::kExpAvgSq, Dtype::kF32, exp_avg_sq_, share_));
  return parts;
}

}  // namespace cairn
