#include "runtime/train/tied_embedding.h"

#include <ATen/ATen.h>

#include "runtime/log/timers.h"

namespace cairn {
namespace {

using at::Tensor;

// Where the tied embedding lies on this rank, if it lies on a first or last stage that are not the same.
std::optional<FlatRange> TiedEmbedding(const FlatParameters& parameters, const ParallelDims& dims) {
  const bool at_an_end = dims.at(Axis::kPp) == 0 || dims.at(Axis::kPp) == dims.topology.pp - 1;
  if (dims.topology.pp == 1 || !at_an_end) return std::nullopt;
  for (const LocalParameter& local : parameters.layout().parameters)
    if (parameters.SpecOf(local).tied_to_last) return local.flat_range();
  return std::nullopt;
}

}  // namespace

void ReduceTiedGradients(const FlatParameters& parameters, const ParallelDims& dims) {
  if (const auto tied = TiedEmbedding(parameters, dims)) {
    const ScopedTimer timer(Timer::kEmbeddingGrads);
    Tensor grad = parameters.Grads(*tied);
    dims.embedding.AllReduceSum(grad, "tied embedding gradient");
  }
}

void CopyTiedWeights(const FlatParameters& parameters, const ParallelDims& dims) {
  if (const auto tied = TiedEmbedding(parameters, dims)) {
    Tensor value = parameters.Weights(*tied);
    dims.embedding.Broadcast(value, 0, "tied embedding");
  }
}

}  // namespace cairn
