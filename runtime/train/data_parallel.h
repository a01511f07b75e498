// What data parallel ranks do together once a step: sum their gradients, and under ZeRO-1 gather the updated
// weights.
//
// ZeRO 0: every rank gets the sum of all gradients. ZeRO 1: rank d gets the sum over partition d of the flat
// buffer (ckpt/model/placement.h) and updates that; the rest of its gradients is then without meaning.
#pragma once

#include "runtime/comm/parallel_dims.h"
#include "runtime/model/flat_parameters.h"

namespace cairn {

// `bucket` bounds the elements of one collective, and so its working memory.
void ReduceGradients(const FlatParameters& parameters, const ParallelDims& dims, int64_t bucket);

// Nothing under ZeRO 0.
void GatherWeights(const FlatParameters& parameters, const ParallelDims& dims);

// The last stage's copy of a tied embedding. The first stage owns the weight: it gets the sum of both
// gradients before they are reduced, alone updates it and hands it on, so that the copies cannot drift apart.
// Nothing happens with one stage or an untied output layer.
void ReduceTiedGradients(const FlatParameters& parameters, const ParallelDims& dims);
void CopyTiedWeights(const FlatParameters& parameters, const ParallelDims& dims);

}  // namespace cairn
