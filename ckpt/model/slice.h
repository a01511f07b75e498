// The part of a parameter that a rank holds. Only this file turns cuts (tensor.h) into boxes.
#pragma once

#include "ckpt/model/tensor.h"

namespace cairn {

struct Slice {
  Box box;     // global coordinates, clipped to the true shape; an extent is 0 if the rank has padding only
  Dims shape;  // in memory, with padding; the box's rows come first
};

// The cut of a parameter of a dense model; along dimension -1 if it is not cut.
inline Cut TpCut(const ParameterSpec& dense) { return dense.cuts.empty() ? Cut{.dim = -1} : dense.cuts[0]; }

// True if the cuts are along different axes of the parameter's ranks and different dimensions that it has.
bool HasValidCuts(const ParameterSpec& parameter);
bool IsCutAlong(const ParameterSpec& parameter, Axis axis);

// The axis of the ranks that hold equal slices, as far as the parameter is cut.
inline Axis DataAxisOf(const ParameterSpec& parameter) {
  return parameter.of_experts ? Axis::kEdp : Axis::kDp;
}

// Errors: InvalidArgument naming the dimension that does not divide. A padding of 1 divides any: the last
// ranks have fewer rows, or none.
Result<Slice> SliceOf(const ParameterSpec& parameter, const Topology& topology, int rank);

// Reconstructs the whole parameter from the shape of one rank's slice. A padded dimension keeps its true
// size; its padding is set so that slices match.
ParameterSpec WholeOf(ParameterSpec parameter, const Dims& slice, const Topology& topology);

}  // namespace cairn
