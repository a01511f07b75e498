// Finds a state of the optimizer that one rank saved in place of all of it: its shape shows that.
#pragma once

#include <string>

#include "ckpt/model/catalog.h"

namespace cairn {

// "layers.0.mlp.up.weight/exp_avg is of another shape than its parameter: [2, 4], not [4, 4]": the first
// state that is not of its parameter's shape; empty if there is none. A number of a whole parameter is not a
// part, nor is a row or a column that Adafactor keeps in its place. States that have only a name may have any
// shape.
std::string FirstPartOfState(const TensorTable& table);

// True if each such state may be of low rank (GaLore): both moments of a matrix, alike, shorter in one
// dimension. One rank's parts of vectors, or of one moment alone, are not.
bool MayBeOfLowRank(const TensorTable& table);

}  // namespace cairn
