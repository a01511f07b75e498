// Settings of the operating system and of libtorch for a training: threads, memory, determinism; copies to
// and from a GPU.
#pragma once

#include <cstddef>

namespace cairn {

// `threads` of intra-op parallelism; 0: the cores of the node that this process may use, shared with the
// other ranks on it, known from the launcher's variables.
void SetThreads(int threads);

// Keeps freed memory for the next step. By default glibc returns each large activation to the kernel and pays
// for its page faults again (measured: bf16 logits of a 50 k vocabulary at a third of the speed).
void KeepFreedMemory();

// The same step computes the same bits each time, on a GPU as on a CPU, so a resumed training gives the same
// results as an unbroken one. By default libtorch adds up some gradients (of the embedding, of flash
// attention) in the order in which its threads finish. Call it before the first use of the GPU.
void UseDeterministicKernels();

// Copies between host memory and the GPU that is this rank's current one.
void CopyBetweenSides(void* to, const void* from, size_t bytes, bool to_device);

}  // namespace cairn
