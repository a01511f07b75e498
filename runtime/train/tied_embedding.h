// The last stage's copy of a tied embedding. The first stage owns the weight: it gets the sum of both
// gradients before they are reduced, is the only one to update it, and sends it to the last stage: the copies
// cannot drift apart. Nothing happens with one stage or an untied output layer.
#pragma once

#include "runtime/comm/parallel_dims.h"
#include "runtime/model/parameters/flat_parameters.h"

namespace cairn {

void ReduceTiedGradients(const FlatParameters& parameters, const ParallelDims& dims);
void CopyTiedWeights(const FlatParameters& parameters, const ParallelDims& dims);

}  // namespace cairn
