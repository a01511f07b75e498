// The helper process of a training in Python (`cairn serve`): saves its state and reads checkpoints for it.
//
// The trainer copies its state into memory that both see and goes on; this process digests, compresses,
// writes and commits, and finishes what it was given also where the trainer dies. It loads no library of the
// training's, and takes part in none of its communication. What they tell each other: docs/serve-protocol.md.
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

// Serves the trainer at the other end of `socket` until it closes that, and every save that was given has
// ended. Errors: Corrupt where the trainer says what no cairn.torch says.
Status ServeTrainer(UniqueFd socket);

}  // namespace cairn
