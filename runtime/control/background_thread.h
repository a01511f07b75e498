// Threads that work beside the training and should cost it nothing.
#pragma once

namespace cairn {

// Calls to make at the start of such a thread: it yields to the training's threads, and where the launcher
// has bound this process to some of the cores, it moves to the others.
void BecomeBackgroundThread();

}  // namespace cairn
