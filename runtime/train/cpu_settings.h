// Settings of the operating system and of libtorch on a CPU: threads and memory.
#pragma once

namespace cairn {

// `threads` of intra-op parallelism; 0: what this process may use of the node's cores, shared with the other
// ranks on it as the launcher's variables tell.
void SetThreads(int threads);

// Keeps freed memory for the next step. By default glibc returns each large activation to the kernel and pays
// for its page faults again (measured: bf16 logits of a 50 k vocabulary at a third of the speed).
void KeepFreedMemory();

}  // namespace cairn
