// The helper process of a training in Python (`cairn serve`): saves its state and reads checkpoints for it.
//
// The trainer copies its state into shared memory and continues; this process digests, compresses, writes and
// commits. It finishes saves that it has even if the trainer dies. It loads no library of the training and
// takes no part in its communication. Protocol: docs/serve-protocol.md.
#pragma once

#include <functional>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// Failures per second of a training in this run directory that its local steps do not survive.
using FailuresBeyond = std::function<double(const std::string& run_dir, bool parity)>;

// Serves the trainer at the other end of `socket` until the trainer closes it and every save has ended.
// Errors: Corrupt if the trainer sends an invalid request.
Status ServeTrainer(FileSystem& fs, UniqueFd socket, FailuresBeyond failures);

}  // namespace cairn
