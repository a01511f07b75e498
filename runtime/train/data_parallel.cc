#include "runtime/train/data_parallel.h"

#include <torch/torch.h>

namespace cairn {
namespace {

using at::Tensor;

void AllReduceInBuckets(const Tensor& grads, const ProcessGroup& dp, int64_t bucket) {
  for (int64_t begin = 0; begin < grads.numel(); begin += bucket) {
    Tensor part = grads.narrow(0, begin, std::min(bucket, grads.numel() - begin));
    dp.AllReduceSum(part, fmt::format("gradients from {}", begin));
  }
}

// A bucket takes the same stretch of every partition, packed, so that each rank gets one of its own
// partition.
void ReduceScatterInBuckets(const Tensor& grads, const ProcessGroup& dp, int64_t bucket) {
  const int64_t ranks = dp.size();
  const Tensor partitions = grads.view({ranks, -1});
  const int64_t stretch = std::max<int64_t>(1, bucket / ranks);
  for (int64_t begin = 0; begin < partitions.size(1); begin += stretch) {
    const int64_t count = std::min(stretch, partitions.size(1) - begin);
    Tensor packed = partitions.narrow(1, begin, count).contiguous().view({-1});
    Tensor mine = partitions[dp.rank()].narrow(0, begin, count);
    dp.ReduceScatterSum(mine, packed, fmt::format("gradients from {}", begin));
  }
}

// The tied embedding on this rank, if it lies on a first or last stage that are not the same.
std::optional<Parameter> TiedEmbedding(const FlatParameters& parameters, const ParallelDims& dims) {
  const bool at_an_end = dims.at.pp == 0 || dims.at.pp == dims.topology.pp - 1;
  if (dims.topology.pp == 1 || !at_an_end) return std::nullopt;
  for (const LocalParameter& local : parameters.layout().parameters)
    if (parameters.SpecOf(local).tied_to_last) return parameters.View(parameters.SpecOf(local).name);
  return std::nullopt;
}

}  // namespace

void ReduceGradients(const FlatParameters& parameters, const ParallelDims& dims, int64_t bucket) {
  if (dims.dp.size() == 1) return;
  if (dims.topology.zero == 0) return AllReduceInBuckets(parameters.grads(), dims.dp, bucket);
  ReduceScatterInBuckets(parameters.grads(), dims.dp, bucket);
}

void GatherWeights(const FlatParameters& parameters, const ParallelDims& dims) {
  if (dims.dp.size() == 1 || dims.topology.zero == 0) return;
  Tensor weights = parameters.weights();
  dims.dp.AllGather(weights, weights.view({dims.dp.size(), -1})[dims.dp.rank()], "updated weights");
}

void ReduceTiedGradients(const FlatParameters& parameters, const ParallelDims& dims) {
  if (auto tied = TiedEmbedding(parameters, dims))
    dims.embedding.AllReduceSum(tied->grad, "tied embedding gradient");
}

void CopyTiedWeights(const FlatParameters& parameters, const ParallelDims& dims) {
  if (auto tied = TiedEmbedding(parameters, dims)) dims.embedding.Broadcast(tied->value, 0, "tied embedding");
}

}  // namespace cairn
