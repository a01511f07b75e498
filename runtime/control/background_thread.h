// Threads that work in parallel with the training and should not slow it down.
#pragma once

namespace cairn {

// Calls to make at the start of such a thread: it yields to the training's threads. If the launcher has bound
// this process to some of the cores, it moves to the others.
void BecomeBackgroundThread();

}  // namespace cairn
