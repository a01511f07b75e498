// Shapes of the same size near a hidden size that fill the GPUs better.
#pragma once

#include <vector>

#include "tools/plan/search.h"

namespace cairn {

struct ShapeProposal {
  ModelShape shape;
  Candidate best;              // the fastest plan for it
  double seconds_of_size = 0;  // of the best plan, scaled to the requested size; shapes are ranked by it
  bool whole_tiles = false;    // hidden % 128 == 0
  bool whole_waves = false;    // hidden % SMs == 0
};

// Hidden sizes within 10 % of `near` in steps that keep shards of the widest TP aligned, heads of 64 to 256
// in multiples of 8, and the number of layers that brings the size within 3 % of the request's. Best first,
// at most `top`. Errors: those of Search.
Result<std::vector<ShapeProposal>> ShapesNear(const PlanRequest& request, const Calibration& calibration,
                                              int64_t near, size_t top);

}  // namespace cairn
