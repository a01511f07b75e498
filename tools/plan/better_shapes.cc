#include "tools/plan/better_shapes.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

constexpr double kAround = 0.10;  // of the hidden size
constexpr double kSizeWithin = 0.03;
constexpr int64_t kMoreLayers = 4;  // or fewer, than the size implies

// The plans for a proposal: TP of half a node or a node; a choice only of stages, replicas and micro-batch.
PlanRequest Narrowed(const PlanRequest& request, const ModelShape& shape) {
  PlanRequest narrowed = request;
  narrowed.shape = shape;
  if (narrowed.tp.empty()) narrowed.tp = {request.cluster.gpus_per_node / 2, request.cluster.gpus_per_node};
  if (narrowed.micro_batches.empty()) narrowed.micro_batches = {1, 2, 4, 8};
  if (narrowed.zero.empty()) narrowed.zero = {1};
  if (narrowed.virtual_stages.empty()) narrowed.virtual_stages = {1};
  if (narrowed.recompute.empty()) narrowed.recompute = {Recomputation::kFull};
  return narrowed;
}

std::vector<ModelShape> Shapes(const PlanRequest& request, int64_t near) {
  const double size = request.shape.TotalParams();
  const int64_t node = request.cluster.gpus_per_node;
  std::vector<ModelShape> shapes;
  const int64_t step = 64 * node;  // shards of hidden / tp stay multiples of 64
  const auto first = static_cast<int64_t>(std::ceil(near * (1 - kAround) / step)) * step;
  for (int64_t hidden = std::max(step, first); hidden <= near * (1 + kAround); hidden += step) {
    ModelShape shape = request.shape;
    shape.hidden = hidden;
    shape.ffn = request.shape.ffn == 0 ? 0 : request.shape.ffn * hidden / request.shape.hidden / step * step;
    shape.head_dim = 0;
    const double beside = shape.EmbeddingParams() * (shape.tied ? 1 : 2) + shape.PositionParams();
    for (int64_t head_dim = 64; head_dim <= 256; head_dim += 8) {
      if (hidden % head_dim != 0 || hidden / head_dim % node != 0) continue;
      shape.heads = hidden / head_dim;
      shape.kv_heads = request.shape.kv_heads == request.shape.heads ? 0 : request.shape.kv_heads;
      const auto layers = static_cast<int64_t>(std::llround((size - beside) / shape.LayerParams()));
      for (shape.layers = layers - kMoreLayers; shape.layers <= layers + kMoreLayers; ++shape.layers)
        if (shape.layers > 0 && std::abs(shape.TotalParams() / size - 1) <= kSizeWithin)
          shapes.push_back(shape);
    }
  }
  return shapes;
}

}  // namespace

Result<std::vector<ShapeProposal>> ShapesNear(const PlanRequest& request, const Calibration& calibration,
                                              int64_t near, size_t top) {
  std::vector<ShapeProposal> proposals;
  for (const ModelShape& shape : Shapes(request, near)) {
    const PlanRequest narrowed = Narrowed(request, shape);
    CAIRN_ASSIGN_OR_RETURN(const SearchResult found, Search(narrowed, calibration, 1));
    if (found.best.empty()) continue;
    ShapeProposal proposal{shape, found.best.front()};
    proposal.seconds_of_size = proposal.best.seconds * request.shape.TotalParams() / shape.TotalParams();
    proposal.whole_tiles = shape.hidden % 128 == 0;
    proposal.whole_waves = shape.hidden % request.cluster.sms == 0;
    proposals.push_back(proposal);
  }
  std::sort(proposals.begin(), proposals.end(),
            [](const auto& a, const auto& b) { return a.seconds_of_size < b.seconds_of_size; });
  if (proposals.size() > top) proposals.resize(top);
  return proposals;
}

}  // namespace cairn
