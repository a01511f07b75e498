// The share is cut into stretches of parameters with the same weight decay; adjacent ones merge, so that the
// fused kernel gets few tensors. A tied copy on the last stage is in no stretch: the engine copies the first
// stage's weights over it after the update. For the norm each rank counts one partition, without such copies,
// and of tensors that tensor parallel ranks hold alike only the first rank's; the sum over the world then has
// each element once.

#include "runtime/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>

#include "ckpt/base/flat_range.h"
#include "runtime/model/parameters/state_memory.h"

namespace cairn {
namespace {

using at::Tensor;

constexpr uint64_t kWidenedElements = 1 << 20;
constexpr int64_t kNormBlock = 1 << 16;  // elements per task: the sum is independent of threads

// In fp64: in fp32 a sum of 2^20 squares is 2e-5 too low. Eight sums at once keep the adder busy.
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
    const FlatRange part = Overlap(range, local.flat_range());
    if (part.size() == 0 || !wanted(local)) continue;
    if (!found.empty() && found.back().end == part.begin) {
      found.back().end = part.end;
    } else {
      found.push_back(part);
    }
  }
  return found;
}

Side StateSide(const TrainConfig& config) { return config.offload_optimizer ? Side::kHost : Side::kDevice; }

Dtype StateDtype(const TrainConfig& config, Role role) {
  const std::string& name = role == Role::kExpAvg     ? config.exp_avg_dtype
                            : role == Role::kExpAvgSq ? config.exp_avg_sq_dtype
                                                      : "fp32";
  return name == "bf16" ? Dtype::kBF16 : Dtype::kF32;
}

}  // namespace

Optimizer::Optimizer(const TrainConfig& config, const FlatParameters& parameters, const ParallelDims& dims)
    : parameters_(parameters), rule_(MakeUpdateRule(config)), offloads_(config.offload_optimizer) {
  const RankLayout& layout = parameters.layout();
  const at::Device device = parameters.device();
  share_ = dims.topology.zero == 0 ? parameters.kept().weights : layout.dense.Partition(dims.at(Axis::kDp));
  const Side side = StateSide(config);
  const auto apart = [&](Side other) { return side != other && SidesDiffer(device); };
  const bool own_master = parameters.dtype() != Dtype::kF32 || apart(parameters.kept().weights_side);
  master_ = own_master ? StateZeros("the master weights", side, device, share_.size(), at::kFloat)
                       : parameters.Weights(share_);
  if (apart(parameters.kept().grads_side))
    staged_grads_ = StateZeros("the gradients on the host", side, device, share_.size(), at::kFloat);
  for (const Role role : rule_->roles()) {
    const Dtype dtype = StateDtype(config, role);
    states_.push_back({role, dtype,
                       StateZeros(fmt::format("the optimizer's {}", Name(role)), side, device, share_.size(),
                                  ToScalarType(dtype))});
  }

  const auto spec = [&](const LocalParameter& local) -> const ParameterSpec& {
    return parameters.SpecOf(local);
  };
  const auto is_copy = [&](const LocalParameter& local) {
    return spec(local).tied_to_last && dims.at(Axis::kPp) > 0;
  };
  const auto decays = [&](const LocalParameter& local) { return !is_copy(local) && spec(local).is_matrix(); };
  const auto does_not = [&](const LocalParameter& local) {
    return !is_copy(local) && !spec(local).is_matrix();
  };
  const auto counts = [&](const LocalParameter& local) {
    return !is_copy(local) && (!spec(local).cuts.empty() || dims.at(Axis::kTp) == 0);
  };
  groups_.push_back({config.weight_decay, Where(layout, share_, decays)});
  groups_.push_back({0, Where(layout, share_, does_not)});
  // Also under ZeRO 0 each data parallel rank counts its partition only: the sum over the world is then the
  // norm.
  counted_ = Where(layout, layout.dense.Partition(dims.at(Axis::kDp)), counts);
}

void Optimizer::SetMaster(const LocalParameter& local, const Tensor& values) {
  const FlatRange mine = Overlap(local.flat_range(), share_);
  const Touches both = Touches::Both();
  if (mine.size() > 0) SliceOf(master_, mine, share_.begin).copy_(SliceOf(values, mine, local.flat_begin));
}

void Optimizer::TakeWeights() {
  if (parameters_.dtype() != Dtype::kF32) return;
  const Touches both = Touches::Both();
  const Tensor weights = parameters_.Weights(share_);
  if (!weights.is_alias_of(master_)) master_.copy_(weights);
}

double Optimizer::SquareSum() const {
  const Touches side(parameters_.kept().grads_side);
  if (parameters_.grads().is_cpu()) {
    double sum = 0;
    for (const FlatRange& range : counted_) sum += SquareSumOnCpu(parameters_.Grads(range));
    return sum;
  }
  Tensor sum = at::zeros({}, parameters_.grads().options().dtype(at::kDouble));
  for (const FlatRange& range : counted_)
    sum += at::linalg_vector_norm(parameters_.Grads(range), 2, std::nullopt, false, at::kDouble).square_();
  return sum.item<double>();
}

double Optimizer::CountZeros() const {
  const Touches side(parameters_.kept().grads_side);
  double zeros = 0;
  for (const FlatRange& range : counted_) {
    const Tensor grad = parameters_.Grads(range);
    zeros += static_cast<double>(grad.numel() - at::count_nonzero(grad).item<int64_t>());
  }
  return zeros;
}

void Optimizer::Step(const UpdateStep& step) {
  if (staged_grads_.defined()) {
    const Touches both = Touches::Both();
    staged_grads_.copy_(parameters_.Grads(share_));
  }
  {
    const Touches side(offloads_ ? Side::kHost : Side::kDevice);
    for (const Group& group : groups_)
      if (!group.ranges.empty()) Update(group, step);
  }
  const Touches both = Touches::Both();
  const Tensor weights = parameters_.Weights(share_);
  if (!weights.is_alias_of(master_)) weights.copy_(master_);
}

void Optimizer::Update(const Group& group, const UpdateStep& step) {
  std::vector<Tensor> states;
  for (const State& state : states_) {
    if (state.dtype != Dtype::kF32) return UpdateInBlocks(group, step);
    states.push_back(state.values);
  }
  rule_->Update(StretchesOf(group, states, share_.begin), step);
}

// States of 16 bits are widened a block at a time.
void Optimizer::UpdateInBlocks(const Group& group, const UpdateStep& step) {
  for (const FlatRange& range : group.ranges) {
    for (uint64_t begin = range.begin; begin < range.end; begin += kWidenedElements) {
      const FlatRange block{begin, std::min(range.end, begin + kWidenedElements)};
      std::vector<Tensor> wide;
      for (const State& state : states_)
        wide.push_back(SliceOf(state.values, block, share_.begin).to(at::kFloat));
      rule_->Update(StretchesOf({group.weight_decay, {block}}, wide, block.begin), step);
      for (size_t i = 0; i < states_.size(); ++i)
        if (states_[i].dtype != Dtype::kF32) SliceOf(states_[i].values, block, share_.begin).copy_(wide[i]);
    }
  }
}

// `states`: by role, arrays whose first element is number `origin` of the buffer.
Stretches Optimizer::StretchesOf(const Group& group, const std::vector<Tensor>& states,
                                 uint64_t origin) const {
  Stretches stretches{.weight_decay = group.weight_decay};
  stretches.states.resize(states.size());
  for (const FlatRange& range : group.ranges) {
    stretches.weights.push_back(SliceOf(master_, range, share_.begin));
    stretches.grads.push_back(staged_grads_.defined() ? SliceOf(staged_grads_, range, share_.begin)
                                                      : parameters_.Grads(range));
    for (size_t i = 0; i < states.size(); ++i)
      stretches.states[i].push_back(SliceOf(states[i], range, origin));
  }
  return stretches;
}

std::vector<StateBuffers::Part> Optimizer::Parts() const {
  const auto part = [](Role role, Dtype dtype, const Tensor& data, FlatRange covers) {
    return StateBuffers::Part{role, dtype, static_cast<std::byte*>(data.mutable_data_ptr()), covers,
                              data.is_cuda()};
  };
  std::vector<StateBuffers::Part> parts{
      part(Role::kWeight, parameters_.dtype(), parameters_.weights(), parameters_.kept().weights)};
  if (parameters_.dtype() != Dtype::kF32) parts.push_back(part(Role::kMaster, Dtype::kF32, master_, share_));
  for (const State& state : states_) parts.push_back(part(state.role, state.dtype, state.values, share_));
  return parts;
}

}  // namespace cairn
