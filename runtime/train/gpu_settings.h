// Settings of libtorch on a GPU.
#pragma once

namespace cairn {

// The same step computes the same bits each time, as on a CPU, so that a resumed training is the unbroken
// one. By default libtorch adds up some gradients (of the embedding, of flash attention) in whatever order
// its threads come. Call it before the first use of the GPU.
void ComputeAlikeEachTime();

}  // namespace cairn
