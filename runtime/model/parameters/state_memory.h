// Memory of a training's state, and what to do if there is not enough.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/model/parameters/memory_side.h"

namespace cairn {

// ZerosOn for `part` of the state, such as "the gradients". Errors: c10::Error that names it and its size if
// memory runs out.
at::Tensor StateZeros(std::string_view part, Side side, at::Device device, uint64_t elements,
                      at::ScalarType type);

// A line for the user if libtorch's message says that memory ran out outside of the state.
std::optional<std::string> OutOfMemoryLine(std::string_view message);

}  // namespace cairn
