// SIGTERM, SIGUSR1 and SIGHUP as a flag: the step in progress ends, the state is saved, the program exits
// with status 0. SIGHUP is left ignored where nohup asked for that.
//
// One thread waits for them; in all others they are blocked, and no handler ever runs. That is not for taste:
// oneDNN's GEMM kernels (libtorch 2.11 on x86) compute with the stack pointer inside a buffer from malloc,
// and there the operating system puts a handler's frame over whatever lies below it in the heap.
#pragma once

namespace cairn {

// Starts the thread that waits. Requires to be called before any other thread is started. Until
// DeferStopSignals() the signals end the process, as is usual. SIGPIPE and SIGXFSZ are ignored from now on: a
// closed pipe or a file size limit is the error of one write, which the writer reports. Throws
// std::system_error if the thread cannot be started.
void WatchStopSignals();

// From now on a signal only sets StopRequested().
void DeferStopSignals();

// True once one has come.
bool StopRequested();

}  // namespace cairn
