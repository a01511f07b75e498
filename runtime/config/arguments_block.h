// A training's arguments, as a block of its log in the format of Megatron's _print_args: `cairn report` and
// other readers of such logs find model, topology and batch in it.
#pragma once

#include <string>

#include "runtime/config/train_config.h"

namespace cairn {

// Every flag by its Megatron name, and what follows from them (world_size, data_parallel_size, params_dtype,
// padded_vocab_size), by name; lines, the last without a newline. Requires a validated config.
std::string ArgumentsBlock(const TrainConfig& config, const Topology& topology);

}  // namespace cairn
