// Finds a state of the optimizer that one rank saved in place of all of it: its shape shows that.
#pragma once

#include <string>

#include "ckpt/model/catalog.h"

namespace cairn {

// Names the first state whose shape differs from that of its parameter; empty if all agree:
// "layers.0.mlp.up.weight/master is of another shape than its parameter: [2, 4], not [4, 4]". Scalars may
// differ, rows and columns that Adafactor keeps of a whole matrix, scales of a whole one's blocks, and states
// that have only a name.
std::string FirstPartOfState(const TensorTable& table);
// Names the first of the latter; nobody knows whether these are whole.
std::string FirstOfUnknownShape(const TensorTable& table);

// True if each such state may be of low rank (GaLore): both moments of a matrix, alike, shorter in one
// dimension. One rank's parts of vectors, or of one moment alone, are not.
bool MayBeOfLowRank(const TensorTable& table);

}  // namespace cairn
