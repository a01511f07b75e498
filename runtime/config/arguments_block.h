// A training's arguments, as a block of its log in the format of Megatron's _print_args: `cairn report` and
// other readers of such logs find model, topology and batch there.
#pragma once

#include <string>

#include "runtime/config/train_config.h"

namespace cairn {

// Every flag by its Megatron name, and what follows from them (world_size, data_parallel_size, params_dtype,
// padded_vocab_size), by name; lines, the last without a newline. Requires a validated config.
std::string ArgumentsBlock(const TrainConfig& config, const Topology& topology);

// Rows of the embedding in memory: the vocabulary, rounded up to a multiple of what TP divides.
int64_t PaddedVocabulary(const TrainConfig& config, int tp);

}  // namespace cairn
