// Finds a state of the optimizer that one rank saved in place of all of it: its shape shows that.
#pragma once

#include <string>

#include "ckpt/model/catalog.h"

namespace cairn {

// "layers.0.mlp.up.weight/exp_avg has shape [2, 4], but its parameter has [4, 4]: …": the first state that is
// only a part of that of its parameter; empty if there is none. A number of a whole parameter is not a part,
// nor is a row or a column that Adafactor keeps in its place. States that have only a name may have any
// shape.
std::string FirstPartOfState(const TensorTable& table);

}  // namespace cairn
